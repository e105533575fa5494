"""Whose turn it is on a target: one thread's at a time, and within it one generation's."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from racer_local.errors import BusyError
from racer_local.speculation.target import Target

__all__ = ["Occupancy", "Occupant"]


class Occupant(Protocol):
    """A generation, as far as it matters here."""

    @property
    def is_cancelled(self) -> bool:
        """Whether it should end at its next chance."""

    def cancel(self) -> None:
        """End it within one decode step."""

    def close(self) -> None:
        """End it now."""


class Occupancy:
    """A lock with an owner: other threads wait for it, and its owner cannot wait for itself.

    A block may hold further blocks and one generation, all of the same thread. A generation may
    end on any thread, by a last reference that goes as well.
    """

    def __init__(self, target: Target) -> None:
        """Begin free."""
        self._target = target
        self._lock = threading.Lock()
        # Guards what follows. Reentrant: the garbage collector may end a generation at any point.
        self._mutex = threading.RLock()
        self._owner: int | None = None
        self._n_holds = 0
        # Weak: a generation that is dropped in the middle must end.
        self._running: weakref.ref[Occupant] | None = None

    def _acquire(self) -> None:
        me = threading.get_ident()
        if self._owner != me:
            self._lock.acquire()
        elif self._running is not None:
            raise BusyError(
                "this thread has an unfinished generation on the same model; finish or close it"
            )
        with self._mutex:
            self._owner = me
            self._n_holds += 1

    def _release(self) -> None:
        with self._mutex:
            self._n_holds -= 1
            if self._n_holds == 0:
                self._owner = None
                self._lock.release()

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Have a turn for a ``with`` block.

        Raises:
            BusyError: this thread has an unfinished generation: it would wait for itself.
        """
        self._acquire()
        try:
            yield
        finally:
            self._release()

    def begin(self, generation: Occupant) -> None:
        """Take a turn for a generation, until ``end``.

        Raises:
            BusyError: this thread has another unfinished generation.
        """
        self._acquire()
        with self._mutex:
            self._running = weakref.ref(generation)
            self._target.resume()
            if generation.is_cancelled:
                self._target.stop()

    def end(self) -> None:
        """Give back what ``begin`` took; from any thread."""
        with self._mutex:
            self._running = None
            self._target.resume()
            self._release()

    def stop(self, generation: Occupant) -> None:
        """Stop the target if it works for this generation."""
        with self._mutex:
            if self.running is generation:
                self._target.stop()

    @property
    def running(self) -> Occupant | None:
        """The generation that has its turn."""
        running = self._running
        return None if running is None else running()

    def close_unfinished(self) -> None:
        """End the generation that has its turn, if there is one."""
        running = self.running
        if running is not None:
            running.close()
