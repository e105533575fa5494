"""Who may use the model now: first come, first served, with a place in the queue to look at."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from racer_local.concurrency.closing import Closing
from racer_local.errors import BusyError

__all__ = ["Queue", "Turn", "Turns"]


class Turn(Closing):
    """A place in the queue; leave it by ``close`` or at the end of a ``with`` block.

    Attributes:
        session: whose it is.
        is_cancelled: set once somebody asked it to stop.
    """

    def __init__(self, turns: Queue, session: str) -> None:
        """Made by ``Turns.take``."""
        self._turns = turns
        self.session = session
        self.is_cancelled = threading.Event()

    @property
    def n_ahead(self) -> int:
        """How many are served before; 0 once it is this one's turn."""
        return self._turns.n_ahead(self)

    @property
    def waits_for(self) -> str:
        """Say what it waits for, to a user."""
        n_ahead = self.n_ahead
        return f"Waiting for {n_ahead} before you." if n_ahead else "One moment …"

    def wait(self, timeout_s: float) -> bool:
        """Wait for the turn to come, or for it to be cancelled; tell whether either is so."""
        return self._turns.wait(self, timeout_s)

    def cancel(self) -> None:
        """Ask whoever holds it to stop: at once if it still waits."""
        self._turns.cancel(self)

    def close(self) -> None:
        """Let the next one in."""
        self._turns.leave(self)


class Queue(Protocol):
    """What hands out turns; see ``Turns`` for the methods."""

    def take(self, session: str) -> Turn:
        """Join the end of the queue."""

    def stop(self, session: str) -> None:
        """Cancel what a session asked for."""

    def close(self) -> None:
        """Cancel everything for good."""

    def n_ahead(self, turn: Turn) -> int:
        """Count those before a turn."""

    def wait(self, turn: Turn, timeout_s: float) -> bool:
        """Wait for a turn to come, or to be cancelled."""

    def cancel(self, turn: Turn) -> None:
        """Ask whoever holds a turn to stop."""

    def leave(self, turn: Turn) -> None:
        """Let the next one in."""


class Turns:
    """The queue. All methods may be called from any thread."""

    def __init__(self, max_waiting: int, on_cancel: Callable[[], None]) -> None:
        """Start with an empty queue.

        Args:
            max_waiting: how many may wait behind the one that is served.
            on_cancel: called when the one that is served is asked to stop.
        """
        self._max_waiting = max_waiting
        self._on_cancel = on_cancel
        self._queue: list[Turn] = []
        self._changed = threading.Condition()
        self._is_closed = False

    def take(self, session: str) -> Turn:
        """Join the end of the queue; what the same session asked for before is cancelled.

        Raises:
            BusyError: the queue is full, or closed.
        """
        self.stop(session)
        with self._changed:
            if self._is_closed:
                raise BusyError("the program is being closed")
            if len(self._queue) > self._max_waiting:
                raise BusyError(
                    f"{len(self._queue) - 1} requests are waiting already; try again in a moment"
                )
            turn = Turn(self, session)
            self._queue.append(turn)
            return turn

    def stop(self, session: str) -> None:
        """Cancel what a session asked for, if anything."""
        with self._changed:
            mine = [turn for turn in self._queue if turn.session == session]
        for turn in mine:
            self.cancel(turn)

    def close(self) -> None:
        """Cancel everything and let nobody in any more."""
        with self._changed:
            self._is_closed = True
            everybody = list(self._queue)
        for turn in reversed(everybody):
            self.cancel(turn)

    def n_ahead(self, turn: Turn) -> int:
        """Count those before a turn."""
        with self._changed:
            return self._queue.index(turn) if turn in self._queue else 0

    def wait(self, turn: Turn, timeout_s: float) -> bool:
        """See ``Turn.wait``."""
        with self._changed:
            return self._changed.wait_for(
                lambda: turn.is_cancelled.is_set() or self._queue[0] is turn, timeout_s
            )

    def cancel(self, turn: Turn) -> None:
        """See ``Turn.cancel``."""
        with self._changed:
            turn.is_cancelled.set()
            is_served = bool(self._queue) and self._queue[0] is turn
            self._changed.notify_all()
        if is_served:
            self._on_cancel()

    def leave(self, turn: Turn) -> None:
        """See ``Turn.close``."""
        with self._changed:
            if turn in self._queue:
                self._queue.remove(turn)
            self._changed.notify_all()
