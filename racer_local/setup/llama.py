"""Install llama-cpp-python with the right back end and visible progress. Layer: set-up.

Runs on a bare Python, before anything is installed: standard library only.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from racer_local.hardware.native_check import amx_build_flags

__all__ = [
    "BACKENDS",
    "BuildPlan",
    "SetupError",
    "check_backend",
    "default_backend",
    "find_compiler",
    "plan_build",
    "prebuilt_index",
    "run_with_progress",
    "say",
]

BACKENDS = ("cpu", "metal", "cuda", "vulkan")

_WHEEL_INDEX = "https://abetlen.github.io/llama-cpp-python/whl/"
# CUDA versions upstream publishes wheels for.
_CUDA_WHEELS = ("11.8", "12.1", "12.2", "12.3", "12.4", "12.5", "13.0", "13.2")
_FLAGS = {"cpu": "", "metal": "-DGGML_METAL=on", "cuda": "-DGGML_CUDA=on"}
_FLAGS["vulkan"] = "-DGGML_VULKAN=on"
_BUILD_STEP = re.compile(r"\[\s*(\d+/\d+|\d+%)\]")
_HEARTBEAT_SECONDS = 10.0
_TERMINAL_SECONDS = 1.0


class SetupError(Exception):
    """Set-up cannot go on; the message is one or a few lines for the user."""


@dataclass(frozen=True)
class BuildPlan:
    """How llama-cpp-python is to be installed.

    Attributes:
        backend: one of ``BACKENDS``.
        is_prebuilt: take upstream's wheel instead of compiling.
        index: upstream's wheel index, for a prebuilt one.
        environment: variables to set for the build.
        is_usual: built as it is on this computer by default, so that a wheel which pip built
            and cached earlier serves as well.
    """

    backend: str
    is_prebuilt: bool = False
    index: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    is_usual: bool = False


def say(text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def default_backend(system: str = sys.platform, machine: str = platform.machine()) -> str:
    """Return the back end for this computer when none is asked for."""
    return "metal" if system == "darwin" and machine == "arm64" else "cpu"


def find_compiler(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the C++ compiler CMake would take, or None."""
    for name in (environment.get("CXX", ""), "c++", "g++", "clang++"):
        if name and shutil.which(shlex.split(name)[0], path=environment.get("PATH")):
            return name
    return None


def _output(command: Sequence[str]) -> str:
    """Return what a small command prints, or '' where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _gcc_version(compiler: str) -> str:
    command = shlex.split(compiler)
    if "clang" in _output([*command, "--version"]).lower():
        return ""
    return _output([*command, "-dumpfullversion"])


def _check_tools(backend: str, system: str) -> dict[str, str]:
    """Check what a back end needs besides the compiler; return variables that help to find it."""
    if backend == "metal" and system != "darwin":
        raise SetupError("BACKEND=metal works on macOS only; take cpu, cuda or vulkan")
    if backend == "cuda" and not shutil.which("nvcc"):
        home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
        nvcc = Path(home) / "bin" / ("nvcc.exe" if system == "win32" else "nvcc")
        if not nvcc.is_file():
            raise SetupError(
                "BACKEND=cuda needs NVIDIA's CUDA toolkit: nvcc was not found.\n"
                "Install it and put its bin folder on PATH, or take ready-made wheels: "
                "make setup BACKEND=cuda PREBUILT=1"
            )
        return {"CUDACXX": str(nvcc)}
    if backend == "vulkan" and not shutil.which("glslc"):
        raise SetupError(
            "BACKEND=vulkan needs the Vulkan SDK: glslc was not found.\n"
            "On Debian or Ubuntu: sudo apt-get install libvulkan-dev glslc"
        )
    return {}


def check_backend(backend: str) -> None:
    """Refuse a back end that does not exist.

    Raises:
        SetupError: naming those that do.
    """
    if backend not in BACKENDS:
        raise SetupError(f"unknown BACKEND {backend!r}; it must be one of {', '.join(BACKENDS)}")


def plan_build(
    backend: str, *, is_prebuilt: bool, cmake_args: str = "", system: str = sys.platform
) -> BuildPlan:
    """Decide how to install; see ``BuildPlan``.

    Args:
        backend: one of ``BACKENDS``.
        is_prebuilt: take upstream's wheel.
        cmake_args: the user's own flags, which come first.
        system: as in ``sys.platform``.

    Raises:
        SetupError: the back end is unknown, or something it needs is missing.
    """
    check_backend(backend)
    if is_prebuilt:
        return BuildPlan(backend, is_prebuilt=True, index=prebuilt_index(backend))
    environment = _check_tools(backend, system)
    flags = f"{cmake_args} {_FLAGS[backend]}".strip()
    if flags:
        environment["CMAKE_ARGS"] = flags
    if "CMAKE_BUILD_PARALLEL_LEVEL" not in os.environ:
        environment["CMAKE_BUILD_PARALLEL_LEVEL"] = str(os.cpu_count() or 1)
    compiler = find_compiler()
    no_amx = amx_build_flags(_gcc_version(compiler)) if compiler else ""
    if no_amx:
        say("note: this compiler breaks AMX code (GCC bug 114098); llama.cpp is built without it")
        for name in ("CFLAGS", "CXXFLAGS"):
            environment[name] = f"{os.environ.get(name, '')} {no_amx}".strip()
    is_usual = backend == default_backend() and not cmake_args
    return BuildPlan(backend, environment=environment, is_usual=is_usual)


def prebuilt_index(backend: str, driver_report: str | None = None) -> str:
    """Return the address of upstream's wheels for a back end.

    Args:
        backend: one of ``BACKENDS``.
        driver_report: what ``nvidia-smi`` prints, which names the newest CUDA the driver runs;
            None asks it.
    """
    if backend != "cuda":
        return _WHEEL_INDEX + backend
    report = _output(["nvidia-smi"]) if driver_report is None else driver_report
    match = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", report)
    # Without an answer 12.4 is the safest guess: most drivers in use run it.
    newest = (int(match[1]), int(match[2])) if match else (12, 4)
    fitting = [v for v in _CUDA_WHEELS if tuple(map(int, v.split("."))) <= newest]
    if not fitting:
        raise SetupError(
            f"the NVIDIA driver runs CUDA up to {newest[0]}.{newest[1]} only, and the oldest "
            f"ready-made wheel needs {_CUDA_WHEELS[0]}; update the driver"
        )
    return _WHEEL_INDEX + "cu" + fitting[-1].replace(".", "")


class _Watcher(threading.Thread):
    """Copies a process' output into the log and remembers the newest build step."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._log = log
        self.step = ""

    def run(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output, self._log.open("ab") as log:
            for line in output:
                log.write(line)
                log.flush()
                for match in _BUILD_STEP.finditer(line.decode("utf-8", "replace")):
                    self.step = match[1]


def run_with_progress(
    command: Sequence[str], environment: Mapping[str, str], log: Path, doing: str
) -> None:
    """Run a long command; show that it lives; keep its output in ``log``.

    Raises:
        SetupError: it failed; the message holds the last lines and the path of the log.
    """
    started = time.monotonic()
    is_terminal = sys.stdout.isatty()
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    watcher = _Watcher(process, log)
    watcher.start()
    pause = _TERMINAL_SECONDS if is_terminal else _HEARTBEAT_SECONDS
    try:
        while True:
            try:
                process.wait(timeout=pause)
                break
            except subprocess.TimeoutExpired:
                seconds = int(time.monotonic() - started)
                step = f", step {watcher.step}" if watcher.step else ""
                line = f"  {doing}: {seconds // 60}:{seconds % 60:02d}{step}"
                sys.stdout.write(f"\r{line}   " if is_terminal else f"{line}\n")
                sys.stdout.flush()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        watcher.join(timeout=5)
        if is_terminal:
            sys.stdout.write("\n")
    if process.returncode != 0:
        raise SetupError(f"{doing} failed.\n{_last_lines(log)}\nThe whole output is in {log}")


def _last_lines(log: Path, n: int = 12) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if re.search(r"error|not found|fatal", line, re.IGNORECASE)]
    chosen = errors[-n:] or lines[-n:]
    return "\n".join(f"  {line.strip()[:200]}" for line in chosen)
