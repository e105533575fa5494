"""What a store is asked for, and looking into folders that may hold anything. Layer: files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FoundModel", "Listing", "is_side_file", "list_models", "quant_of", "read_small"]

_MAX_ENTRIES = 20_000
_MAX_SMALL_BYTES = 1 << 20
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
# Parts of other models: image and sound encoders, draft heads, importance matrices, adapters.
_SIDE_FILE = re.compile(
    r"(^|[-_.])(mmproj|imatrix|lora|adapter)([-_.]|$)|(^|[-_])(mtp|eagle3|dflash|dspark)-", re.I
)
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_0|BF16|F16|F32|FP16|MXFP4|NVFP4))"
    r"(?![A-Za-z0-9])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model file, or an entry that should be one.

    Attributes:
        name: what the user types for exactly this one.
        store: whose it is, for example ``ollama``.
        path: the file; of a split model, its first part.
        size_bytes: of all parts together; 0 where it is not known.
        n_parts: files it is split into.
        aliases: other names it goes by, in lower case; other models may share them.
        problem: why it cannot be used, or ''.
    """

    name: str
    store: str
    path: Path
    size_bytes: int = 0
    n_parts: int = 1
    aliases: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """One model file in a folder, before it has a name.

    Attributes:
        path: the file; of a split model, its first part.
        size_bytes: of all parts together.
        n_parts: files it is split into.
        problem: why it, or the folder it would be in, cannot be read; '' if it can.
    """

    path: Path
    size_bytes: int = 0
    n_parts: int = 1
    problem: str = ""


def is_side_file(name: str) -> bool:
    """Tell whether a file is a companion of a model and none by itself."""
    return _SIDE_FILE.search(name) is not None


def quant_of(file_name: str) -> str:
    """Read the quantization off a file's name, in capitals; '' where it says none."""
    found = _QUANT.findall(file_name.removesuffix(".gguf"))
    return found[-1].upper() if found else ""


def read_small(path: Path) -> bytes:
    """Read a file that has to be small.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger than a megabyte, or no regular file.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    with path.open("rb") as file:
        content = file.read(_MAX_SMALL_BYTES + 1)
    if len(content) > _MAX_SMALL_BYTES:
        raise ValueError(f"it is far too large ({status.st_size / 1e6:.0f} MB)")
    return content


def list_models(root: Path, depth: int) -> list[Listing]:
    """List the model files up to ``depth`` folders below ``root``, split ones as one.

    Companion files and unfinished downloads are left out; what cannot be read is listed with the
    reason. A folder that is not there has nothing.
    """
    files: list[Path] = []
    listings: list[Listing] = []
    for path, problem in _walk(root, depth):
        if problem:
            listings.append(Listing(path, problem=problem))
        elif path.name.lower().endswith(".gguf") and not is_side_file(path.name):
            files.append(path)
    listings += [_listing(path) for path in files if _is_first(path)]
    names = {path.name.lower() for path in files}
    listings += [
        Listing(path, problem="the first part of this split model is missing")
        for path in files
        if _is_orphan(path, names)
    ]
    return sorted(listings, key=lambda listing: str(listing.path))


def _walk(root: Path, depth: int) -> Iterator[tuple[Path, str]]:
    """Yield files, and folders with the reason why they cannot be read."""
    pending = [(root, depth)]
    seen: set[str] = set()
    n_entries = 0
    while pending:
        folder, left = pending.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        try:
            names = sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            yield folder, _reason(error)
            continue
        for name in names:
            n_entries += 1
            if n_entries > _MAX_ENTRIES:
                yield root, f"it holds more than {_MAX_ENTRIES:,} entries; the rest was not read"
                return
            path = folder / name
            if path.is_dir():
                if left > 0:
                    pending.append((path, left - 1))
            else:
                yield path, ""


def _reason(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "permission denied"
    return getattr(error, "strerror", None) or str(error)


def _is_first(path: Path) -> bool:
    match = _PART.search(path.name)
    return match is None or int(match[1]) == 1


def _is_orphan(path: Path, names: set[str]) -> bool:
    """Tell whether this is the lowest part there is of a model without its first part."""
    match = _PART.search(path.name)
    if match is None or int(match[1]) == 1:
        return False
    stem = path.name[: match.start()].lower()
    lower = [f"{stem}-{i:05d}-of-{match[2]}.gguf" for i in range(1, min(int(match[1]), 1000))]
    return not any(name in names for name in lower)


def _listing(path: Path) -> Listing:
    match = _PART.search(path.name)
    parts = [path]
    if match is not None:
        stem, n_parts = path.name[: match.start()], min(int(match[2]), 1000)
        parts = [
            path.with_name(f"{stem}-{i:05d}-of-{match[2]}{path.suffix}")
            for i in range(1, n_parts + 1)
        ]
    size, missing = 0, 0
    for part in parts:
        try:
            status = os.stat(part)
        except OSError as error:
            if len(parts) == 1:
                is_link = os.path.islink(part)
                gone = isinstance(error, FileNotFoundError) and is_link
                problem = "a link to a file that is gone" if gone else _reason(error)
                return Listing(path, problem=problem)
            missing += 1
            continue
        if not stat.S_ISREG(status.st_mode):
            return Listing(path, problem="no regular file")
        size += status.st_size
    if missing:
        problem = f"{missing} of {len(parts)} parts are missing"
        return Listing(path, size, len(parts), problem)
    if not os.access(path, os.R_OK):
        return Listing(path, size, len(parts), "permission denied")
    return Listing(path, size, len(parts))
