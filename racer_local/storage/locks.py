"""A lock between processes, held on a file. Layer: files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

__all__ = ["file_lock"]


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of this name, waiting while another process or thread has it.

    The operating system lets go of it when the process ends, however it ends.
    """
    # Every holder has a lock object of its own: threads wait for each other too.
    lock = FileLock(path, is_singleton=False)
    try:
        lock.acquire()
    except NotImplementedError:
        # Some network file systems have no locks. What is written appears in one stroke even so;
        # at worst two processes do the same work.
        yield
        return
    try:
        yield
    finally:
        lock.release()
