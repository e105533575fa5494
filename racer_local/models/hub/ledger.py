"""What was put into the shared cache by us: only that may be removed by us. Layer: files."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from racer_local.errors import ConfigError
from racer_local.storage.files import data_folder, write_text
from racer_local.storage.locks import file_lock

__all__ = ["forget", "pulled_files", "record", "remove_files"]


def _path() -> Path:
    return data_folder() / "pulled.json"


def pulled_files() -> set[str]:
    """Return the paths of all files that were fetched into the hub's cache from here."""
    try:
        names = json.loads(_path().read_text(encoding="utf-8"))["files"]
        return {name for name in names if isinstance(name, str)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def record(paths: Sequence[Path]) -> None:
    """Note files as ours; a failure only means that they are never removed from here."""
    _change(lambda names: names | {str(path) for path in paths})


def forget(paths: Sequence[Path]) -> None:
    """Take files off the note."""
    _change(lambda names: names - {str(path) for path in paths})


def _change(change: Callable[[set[str]], set[str]]) -> None:
    """Read, change and write the note while nobody else does."""
    path = _path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path.with_suffix(".lock")):
            names = sorted(change(pulled_files()))
            write_text(path, json.dumps({"files": names}, indent=1))


def remove_files(paths: Sequence[Path]) -> int:
    """Remove files of the hub's cache, and the contents behind them that nothing else names.

    Returns:
        Bytes freed.

    Raises:
        ConfigError: one cannot be removed.
    """
    freed = 0
    for path in paths:
        try:
            blob = Path(os.path.realpath(path)) if path.is_symlink() else None
            size = path.stat().st_size if path.exists() else 0
            path.unlink()
            if blob is None or not _is_named_elsewhere(blob):
                freed += size
                if blob is not None and blob.parent.name == "blobs":
                    blob.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{path} cannot be removed: {error.strerror}") from error
    forget(paths)
    return freed


def _is_named_elsewhere(blob: Path) -> bool:
    """Tell whether another revision of the repository holds the same content."""
    snapshots = blob.parent.parent / "snapshots"
    return any(
        os.path.realpath(path) == str(blob) for path in snapshots.rglob("*") if path.is_symlink()
    )
