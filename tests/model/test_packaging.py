"""What is shipped works where nothing of this folder is: the sdist, the wheel, a frozen program.

Run by ``-m slow``: it takes an environment of its own, PyInstaller, and minutes.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from inputs import STEP, STEP_ANSWER

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
IS_WINDOWS = sys.platform == "win32"
# Installed beside the dependencies where tests run, and asked for by none of them.
NOT_NEEDED = ("gradio", "IPython", "matplotlib", "pandas", "playwright", "pytest", "scipy")


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def bare_environment(home: Path) -> dict[str, str]:
    """Nothing of this process' but what Windows itself cannot do without."""
    kept = {name: os.environ[name] for name in ("SYSTEMROOT", "TEMP") if name in os.environ}
    return {**kept, "HOME": str(home), "USERPROFILE": str(home), "LOCALAPPDATA": str(home)}


@dataclass
class Installed:
    """An environment with the package from its wheel, and PyInstaller."""

    bin: Path
    folder: Path

    def program(self, name: str) -> Path:
        return self.bin / (f"{name}.exe" if IS_WINDOWS else name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    venv = folder / "venv"
    run(sys.executable, "-m", "venv", venv, cwd=folder)
    it = Installed(venv / ("Scripts" if IS_WINDOWS else "bin"), folder)
    python = it.program("python")
    pip = (python, "-m", "pip", "install", "-q")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    tools = subprocess.run([*pip, "pyinstaller", "hatchling"], env=env, cwd=folder, check=False)
    if tools.returncode:
        pytest.skip("PyInstaller and hatchling are not here and cannot be fetched")
    run(python, "-m", "hatchling", "build", "-t", "sdist", "-d", folder / "dist", cwd=ROOT, env=env)
    sdist = next((folder / "dist").glob("*.tar.gz"))
    # Without isolation, and what it depends on is that of this process: no compiler is needed.
    run(
        *(*pip, "--no-deps", "--no-build-isolation", sdist),
        cwd=folder,
        env=env,
    )
    where = python, "-c", "import site; print(site.getsitepackages()[-1])"
    packages = Path(run(*where, cwd=folder, env=env).strip())
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()), "utf-8")
    return it


@pytest.fixture
def model_path(smol_path: Path, tmp_path: Path) -> Path:
    path = tmp_path / "模型 and 🚀" / "m 模型.gguf"
    path.parent.mkdir()
    try:
        path.symlink_to(smol_path.resolve())
    except OSError:
        shutil.copy(smol_path, path)
    return path


def test_the_package_from_its_sdist_answers_in_another_folder(
    installed: Installed, model_path: Path, tmp_path: Path
) -> None:
    env = bare_environment(tmp_path)
    told = run(
        *(installed.program("racer-local"), "generate", "--model", model_path),
        *("--max-tokens", "32", "--temp", "0", "--raw", STEP),
        cwd=tmp_path,
        env=env,
    )
    assert told.rstrip("\n").endswith(STEP_ANSWER)
    where = "import racer_local; print(racer_local.__file__)"
    assert "site-packages" in run(installed.program("python"), "-c", where, cwd=tmp_path, env=env)


def test_a_one_folder_program_answers_from_an_odd_path(
    installed: Installed, model_path: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tkinter")
    built = installed.folder / "frozen"
    run(
        *(installed.program("pyinstaller"), "--noconfirm", "--name", "chat"),
        *("--distpath", built, "--workpath", built / "work", "--specpath", built),
        *(part for name in NOT_NEEDED for part in ("--exclude-module", name)),
        ROOT / "docs" / "examples" / "desktop.py",
        cwd=installed.folder,
        env={**bare_environment(tmp_path), "PATH": os.environ["PATH"]},
    )
    # Nothing may be looked for where it was built.
    program = tmp_path / "Programm 程序 🚀"
    shutil.move(built / "chat", program)
    shutil.rmtree(built)
    executable = program / ("chat.exe" if IS_WINDOWS else "chat")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = bare_environment(tmp_path)
    told = run(executable, "--ask", STEP, model_path, cwd=elsewhere, env=env)
    assert STEP_ANSWER.startswith(told.rstrip("\n"))
    assert len(told) > 40
    assert not run(executable, "--ask", "👍 🎉 " * 6, model_path, cwd=elsewhere, env=env).isascii()
