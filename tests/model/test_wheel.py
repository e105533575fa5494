"""What is shipped works where nothing of this folder is. A frozen program: ``test_packaging``."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of what is in the wheel that is made of the sdist."""
    folder = tmp_path_factory.mktemp("shipped")
    run("-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    [sdist] = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [source] = folder.glob("racer_local-*/")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_answers_in_another_folder(
    unpacked: Path, tiny_path: Callable[[str], Path], tmp_path: Path
) -> None:
    site = {"PYTHONPATH": str(unpacked)}
    where = run("-c", "import racer_local; print(racer_local.__file__)", cwd=tmp_path, **site)
    assert unpacked in Path(where.strip()).parents
    assert not list(unpacked.rglob("research"))
    generate = ("-m", "racer_local", "generate", "--raw", "--temp", "0", "-n", "16", "ab")
    told = run(*generate, "--model", tiny_path("cycle"), cwd=tmp_path, **site)
    assert told.strip() == "cdefghabcdefghab"
    assert "smollm2-135m-instruct" in run(
        "-m", "racer_local", "models", "list", cwd=tmp_path, **site
    )


def test_the_wheel_has_no_tests_no_models_and_the_page(unpacked: Path) -> None:
    names = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*")}
    assert "racer_local_ui" in names
    assert not any(name.endswith(".gguf") or name.startswith("tests") for name in names)
