"""The user's folders, and files that appear as a whole or not at all. Layer: files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import platformdirs

__all__ = ["cache_folder", "data_folder", "new_file", "write_text"]

_NAME = "racer-local"


def cache_folder() -> Path:
    """Return where things are kept that can be made again; it may not exist yet."""
    return platformdirs.user_cache_path(_NAME, appauthor=False)


def data_folder() -> Path:
    """Return where things are kept that are the user's; it may not exist yet."""
    return platformdirs.user_data_path(_NAME, appauthor=False)


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file in one stroke, readable by its owner only; makes its folder where missing.

    Whatever goes wrong, what was there before is unharmed, and nothing else is left.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder so that it can be moved in one stroke; of a name of its own, for threads
    # of one process may write at once.
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8; see ``new_file``."""
    with new_file(path) as file:
        file.write(text.encode("utf-8"))
