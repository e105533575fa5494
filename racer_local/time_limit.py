"""Ends Python code of others that takes too long. Layer: pure (standard library only)."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

__all__ = ["TooSlowError", "time_limit"]


class TooSlowError(Exception):
    """The code did not end in time."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``TooSlowError`` in this thread if the block takes longer.

    The interpreter raises it between two instructions of Python: loops end, one call into native
    code does not.
    """
    me = ctypes.c_ulong(threading.get_ident())
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    lock = threading.Lock()
    is_over = False

    def ring() -> None:
        with lock:
            if not is_over:
                raise_in(me, ctypes.py_object(TooSlowError))

    alarm = threading.Timer(seconds, ring)
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()
        with lock:
            is_over = True
            # One that rang and was not raised yet must not be raised later.
            raise_in(me, None)
