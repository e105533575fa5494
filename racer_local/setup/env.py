"""Make the virtual environment that the Makefile's targets run in. Layer: set-up.

``python3 -m racer_local.setup.env`` from the checkout, with any Python 3.10 or newer and nothing
installed: standard library only. Everything is done once and noted in ``.venv``; a second call
only checks the notes, that the environment still works, and that the models are there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from racer_local.hardware.native_check import cpu_has_amx, library_misuses_amx
from racer_local.setup.llama import (
    BuildPlan,
    SetupError,
    check_backend,
    default_backend,
    find_compiler,
    plan_build,
    run_with_progress,
    say,
)

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
MINIMUM = (3, 10)
_NOTE = "racer-setup.json"


@dataclass
class Note:
    """What was installed into the environment, as noted in it.

    Attributes:
        root: where the checkout was; an environment does not survive a move.
        backend: llama.cpp's back end; '' until it is installed.
        prebuilt: whether upstream's wheel was taken.
        requirement: of llama-cpp-python.
        cmake_args: the user's own ``CMAKE_ARGS`` then.
        project: fingerprint of ``pyproject.toml`` then.
        extras: optional dependencies that were installed.
    """

    root: str = ""
    backend: str = ""
    prebuilt: bool = False
    requirement: str = ""
    cmake_args: str = ""
    project: str = ""
    extras: list[str] = field(default_factory=list)


# --- the environment -------------------------------------------------------------------------


def venv_python(venv: Path) -> Path:
    """Return the interpreter inside an environment; Windows has another layout."""
    windows = venv / "Scripts" / "python.exe"
    return windows if os.name == "nt" or windows.is_file() else venv / "bin" / "python"


def is_working(venv: Path) -> bool:
    """Tell whether the environment's interpreter starts, is new enough and has pip."""
    code = f"import sys, pip; sys.exit(sys.version_info[:2] < {MINIMUM!r})"
    try:
        done = subprocess.run(
            [venv_python(venv), "-I", "-c", code], capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


def read_note(venv: Path) -> Note:
    """Read the note; anything unreadable counts as nothing installed."""
    try:
        return Note(**json.loads((venv / _NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return Note()


def write_note(venv: Path, note: Note) -> None:
    """Write the note, whole or not at all."""
    draft = venv / f"{_NOTE}.new"
    draft.write_text(json.dumps(asdict(note)), encoding="utf-8")
    os.replace(draft, venv / _NOTE)


def ensure_venv(root: Path) -> Path:
    """Make ``.venv`` if it is missing, broken, or was made for another place."""
    venv = root / ".venv"
    if venv.exists():
        noted_root = read_note(venv).root
        if is_working(venv) and noted_root in ("", str(root)):
            return venv
        say("the environment in .venv does not work any more; making it anew")
        shutil.rmtree(venv)
    say(f"making the virtual environment .venv (Python {sys.version.split()[0]})")
    command = [sys.executable, "-m", "venv", str(venv)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not is_working(venv):
        shutil.rmtree(venv, ignore_errors=True)
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        install_debian_package("Python's venv module", package, "python3-venv")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not is_working(venv):
            shutil.rmtree(venv, ignore_errors=True)
            raise SetupError(f"making .venv failed:\n{(done.stderr or done.stdout).strip()}")
    write_note(venv, Note(root=str(root)))
    return venv


def install_debian_package(purpose: str, *names: str) -> None:
    """Install the first of these packages that exists, as root on Debian; else say what to do.

    Raises:
        SetupError: not root, not Debian, or none could be installed.
    """
    apt = shutil.which("apt-get")
    if apt is None:
        raise SetupError(f"{purpose} is missing on this system; please install it")
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise SetupError(f"{purpose} is missing; get it with: sudo apt-get install {names[0]}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    say(f"{purpose} is missing; installing the Debian package {names[0]}")
    subprocess.run([apt, "update", "-qq"], env=environment, check=False, capture_output=True)
    output = b""
    for name in names:
        command = [apt, "install", "-y", "-qq", "--no-install-recommends", name]
        done = subprocess.run(command, env=environment, check=False, capture_output=True)
        if done.returncode == 0:
            return
        output = done.stderr
    reason = output.decode(errors="replace").strip()
    raise SetupError(f"apt-get could not install {names[0]}:\n{reason}")


# --- what goes into it -----------------------------------------------------------------------


def llama_requirement(project: str) -> str:
    """Pick the requirement of llama-cpp-python out of ``pyproject.toml``."""
    # Python 3.10 has no TOML reader.
    match = re.search(r'"(llama-cpp-python\b[^"]*)"', project)
    if match is None:
        raise SetupError("pyproject.toml does not name llama-cpp-python")
    return match[1]


def known_extras(project: str) -> set[str]:
    """Return the names of the optional dependencies in ``pyproject.toml``."""
    match = re.search(r"^\[project\.optional-dependencies\]\n(.*?)(?=^\[|\Z)", project, re.S | re.M)
    return set(re.findall(r"^([A-Za-z0-9_-]+)\s*=\s*\[", match[1], re.M)) if match else set()


def _pip(venv: Path, *arguments: str) -> list[str]:
    quiet = ("--disable-pip-version-check", "--no-input")
    return [str(venv_python(venv)), "-m", "pip", "install", *quiet, *arguments]


def _has_package(venv: Path, name: str) -> bool:
    # A folder without code in it, as a half-removed package leaves, has no origin.
    code = (
        f"import importlib.util, sys; spec = importlib.util.find_spec({name!r});"
        "sys.exit(spec is None or spec.origin is None)"
    )
    done = subprocess.run([venv_python(venv), "-I", "-c", code], capture_output=True, check=False)
    return done.returncode == 0


def _require_compiler() -> None:
    if sys.platform == "win32":
        return  # CMake finds Visual Studio by itself, where we could not.
    if find_compiler() is None:
        if sys.platform == "darwin":
            raise SetupError(
                "there is no C++ compiler; install Apple's with: xcode-select --install"
            )
        install_debian_package("a C++ compiler", "build-essential")


def ensure_llama(venv: Path, note: Note, wanted: Note) -> None:
    """Install llama-cpp-python, or change its back end."""
    asked = (wanted.backend, wanted.prebuilt, wanted.requirement, wanted.cmake_args)
    is_there = _has_package(venv, "llama_cpp")
    have = (note.backend, note.prebuilt, note.requirement, note.cmake_args)
    if is_there and have == asked:
        return
    if not wanted.prebuilt:
        _require_compiler()
    plan = plan_build(wanted.backend, is_prebuilt=wanted.prebuilt, cmake_args=wanted.cmake_args)
    is_change = is_there and bool(note.backend)
    _install_llama(venv, plan, wanted.requirement, must_rebuild=is_change)
    if not plan.is_prebuilt and cpu_has_amx() and _has_broken_amx(venv):
        say("the wheel in pip's cache would crash on this processor; compiling it afresh")
        _install_llama(venv, plan, wanted.requirement, must_rebuild=True)
    note.backend, note.prebuilt, note.requirement, note.cmake_args = asked
    write_note(venv, note)


def _has_broken_amx(venv: Path) -> bool:
    libraries = venv.glob("lib*/python*/site-packages/llama_cpp/lib/libggml-cpu*.so")
    return any(library_misuses_amx(library) for library in libraries)


def _install_llama(venv: Path, plan: BuildPlan, requirement: str, *, must_rebuild: bool) -> None:
    log = venv / "setup.log"
    arguments = ["-v", requirement]
    if plan.is_prebuilt:
        say(f"fetching a ready-made llama.cpp ({plan.backend}) from {plan.index}")
        arguments += ["--extra-index-url", plan.index, "--only-binary", "llama-cpp-python"]
    else:
        say(
            f"installing llama.cpp ({plan.backend}). Compiling it takes some minutes: about 5 on "
            f"2 cores, more for a GPU. Output goes to {log}"
        )
    if must_rebuild or not plan.is_usual:
        # Another build of the same version may lie in pip's cache.
        arguments += ["--no-cache-dir"]
    if must_rebuild:
        arguments += ["--force-reinstall", "--no-deps"]
    log.write_bytes(b"")
    run_with_progress(_pip(venv, *arguments), plan.environment, log, "installing llama.cpp")


def ensure_project(venv: Path, root: Path, note: Note, wanted: Note) -> None:
    """Install the package itself, editable, with the extras asked for now or before."""
    extras = sorted(set(note.extras) | set(wanted.extras))
    if (
        note.project == wanted.project
        and note.extras == extras
        and _has_package(venv, "racer_local")
    ):
        return
    shown = f" with [{','.join(extras)}]" if extras else ""
    say(f"installing racer_local{shown}")
    target = f"{root}[{','.join(extras)}]" if extras else str(root)
    log = venv / "setup.log"
    run_with_progress(_pip(venv, "-v", "--editable", target), {}, log, "installing racer_local")
    note.project, note.extras = wanted.project, extras
    write_note(venv, note)


def ensure_models(venv: Path, root: Path, names: Sequence[str]) -> None:
    """Fetch the models, in the environment; it prints its own progress and errors."""
    command = [str(venv_python(venv)), "-m", "racer_local.models.store", *names]
    done = subprocess.run(command, cwd=root, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise SetupError("the model could not be fetched")


# --- command line ----------------------------------------------------------------------------


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="setup_env", description="Set up .venv for the Makefile.")
    parser.add_argument("--backend", default="", help="cpu, metal, cuda or vulkan")
    parser.add_argument("--prebuilt", default="", help="1: take upstream's wheels")
    parser.add_argument("--extras", default="", help="optional dependencies, by comma")
    parser.add_argument("--models", default="", help="models to fetch, by comma")
    return parser.parse_args(arguments)


def wanted_note(options: argparse.Namespace, note: Note, project: str, root: Path) -> Note:
    """Work out what is asked for; what is not said stays as it was installed."""
    backend = options.backend.strip().lower() or note.backend or default_backend()
    if options.prebuilt.strip():
        is_prebuilt = options.prebuilt.strip() not in ("0", "no", "false")
    else:
        is_prebuilt = note.prebuilt and backend == note.backend
    extras = {name for name in options.extras.split(",") if name} & known_extras(project)
    return Note(
        root=str(root),
        backend=backend,
        prebuilt=is_prebuilt,
        requirement=llama_requirement(project),
        cmake_args=os.environ.get("CMAKE_ARGS", note.cmake_args),
        project=hashlib.sha256(project.encode()).hexdigest(),
        extras=sorted(extras),
    )


def set_up(root: Path, options: argparse.Namespace) -> None:
    """Do everything that is not done yet."""
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    # Refuse a wrong back end before minutes are spent.
    asked = options.backend.strip().lower()
    if asked:
        check_backend(asked)
    venv = ensure_venv(root)
    note = read_note(venv)
    wanted = wanted_note(options, note, project, root)
    ensure_llama(venv, note, wanted)
    ensure_project(venv, root, note, wanted)
    names = [name for name in options.models.split(",") if name]
    if names:
        ensure_models(venv, root, names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up, and turn every expected failure into a message."""
    if sys.version_info[:2] < MINIMUM:
        sys.stderr.write(f"error: Python 3.10 or newer is needed, this is {sys.version}\n")
        return 1
    try:
        set_up(ROOT, _parse(sys.argv[1:] if arguments is None else arguments))
    except SetupError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"error: set-up failed: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; run the same command again to go on\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
