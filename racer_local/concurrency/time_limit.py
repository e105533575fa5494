"""Ends Python code of others that takes too long. Layer: pure (standard library only).

One thread watches all limits and is woken for none of them as a rule: to start a thread for each
would take half a millisecond from every request.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
from collections.abc import Iterator
from time import monotonic

__all__ = ["TooSlowError", "time_limit"]


class TooSlowError(Exception):
    """The code did not end in time."""


_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _Limit:
    """A thread, and until when it may take."""

    def __init__(self, seconds: float) -> None:
        self.thread = ctypes.c_ulong(threading.get_ident())
        self.ends = monotonic() + seconds

    def ring(self) -> None:
        """Have ``TooSlowError`` raised in the thread."""
        _raise_in(self.thread, ctypes.py_object(TooSlowError))

    def hush(self) -> None:
        """Take back one that rang and was not raised yet; it must not be raised later."""
        _raise_in(self.thread, None)


class _Watch:
    """Rings when limits are reached."""

    def __init__(self) -> None:
        self.process = os.getpid()
        # Taken directly where an error may ring: raised inside of the condition's Python code it
        # would leave the lock taken for ever.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._limits: list[_Limit] = []
        self._wakes = math.inf
        threading.Thread(target=self._run, name="racer-local-time-limit", daemon=True).start()

    def add(self, limit: _Limit) -> None:
        with self._lock:
            self._limits.append(limit)
            if limit.ends < self._wakes:
                self._changed.notify()

    def remove(self, limit: _Limit) -> None:
        with self._lock:
            if limit in self._limits:
                self._limits.remove(limit)
            limit.hush()

    def _run(self) -> None:
        with self._changed:
            while True:
                now = monotonic()
                for limit in [limit for limit in self._limits if limit.ends <= now]:
                    self._limits.remove(limit)
                    limit.ring()
                self._wakes = min((limit.ends for limit in self._limits), default=math.inf)
                self._changed.wait(None if self._wakes == math.inf else self._wakes - now)


_lock = threading.Lock()
_shared: _Watch | None = None


def _watch() -> _Watch:
    global _shared  # one thread per process is the point
    with _lock:
        # A forked child has the variable, but not the thread.
        if _shared is None or _shared.process != os.getpid():
            _shared = _Watch()
        return _shared


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``TooSlowError`` in this thread if the block takes longer.

    The interpreter raises it between two instructions of Python: loops end, one call into native
    code does not.
    """
    watch = _watch()
    limit = _Limit(seconds)
    watch.add(limit)
    try:
        yield
    finally:
        watch.remove(limit)
