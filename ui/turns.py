"""Turns of the page's sessions: each is a call in the queue of the model. Layer: pure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from racer_local.concurrency.call_queue import Call, CallQueue
from racer_local.concurrency.closing import Closing
from racer_local.errors import BusyError, ClosedError

__all__ = ["Join", "Turn", "Turns", "join_bounded"]

# Joins a queue; see ``CallQueue.submit``.
Join: TypeAlias = Callable[[Callable[[Call], None]], Call]


class Turn(Closing):
    """One entry of the queue; leave it by ``close`` or at the end of a ``with`` block.

    Attributes:
        session: whose it is.
        is_cancelled: set once somebody asked it to stop.
        call: the entry itself.
    """

    call: Call

    def __init__(self, turns: Turns, session: str) -> None:
        """Made by ``Turns.take``."""
        self._turns = turns
        self._has_come = threading.Event()
        self.session = session
        self.is_cancelled = threading.Event()

    def come(self, call: Call) -> None:
        """Take notice that the turn has come, or never will."""
        self.call = call
        if not call.is_served:
            self.is_cancelled.set()
        self._has_come.set()

    @property
    def n_ahead(self) -> int:
        """How many are served before; 0 once it is this one's turn."""
        return self._turns.calls.n_ahead(self.call)

    @property
    def waits_for(self) -> str:
        """Say what it waits for, to a user."""
        n_ahead = self.n_ahead
        return f"Waiting for {n_ahead} before you." if n_ahead else "One moment …"

    def wait(self, timeout_s: float) -> bool:
        """Wait for the turn to come, or for it to be cancelled; tell whether either is so."""
        return self._has_come.wait(timeout_s)

    def cancel(self) -> None:
        """Ask whoever holds it to stop: at once if it still waits."""
        self.is_cancelled.set()
        self.call.cancel()

    def close(self) -> None:
        """Let the next one in."""
        self._turns.leave(self)
        self.call.cancel()
        self.call.close()


class Turns:
    """The turns of all sessions of a page. All methods may be called from any thread."""

    def __init__(self, calls: CallQueue, join: Join) -> None:
        """Begin without any.

        Args:
            calls: the queue.
            join: joins it, or raises ``BusyError``.
        """
        self.calls = calls
        self._join = join
        self._lock = threading.Lock()
        self._taken: list[Turn] = []
        self._is_closed = False

    def take(self, session: str) -> Turn:
        """Join the end of the queue; what the same session asked for before is cancelled.

        Raises:
            BusyError: the queue is full, or closed.
        """
        self.stop(session)
        turn = Turn(self, session)
        try:
            if self._is_closed:
                raise ClosedError("closed")
            turn.call = self._join(turn.come)
        except ClosedError:
            raise BusyError("the program is being closed") from None
        with self._lock:
            self._taken.append(turn)
            is_late = self._is_closed
        if is_late:
            # Whoever closed meanwhile did not see this one.
            turn.cancel()
        return turn

    def stop(self, session: str) -> None:
        """Cancel what a session asked for, if anything."""
        with self._lock:
            mine = [turn for turn in self._taken if turn.session == session]
        for turn in mine:
            turn.cancel()

    def close(self) -> None:
        """Cancel everything and let nobody in any more."""
        with self._lock:
            self._is_closed = True
            everybody = list(self._taken)
        for turn in reversed(everybody):
            turn.cancel()

    def leave(self, turn: Turn) -> None:
        """Forget a turn that is over."""
        with self._lock:
            if turn in self._taken:
                self._taken.remove(turn)


def join_bounded(calls: CallQueue, max_waiting: int) -> Join:
    """Return what joins a queue in which only so many may wait."""
    lock = threading.Lock()

    def join(on_turn: Callable[[Call], None]) -> Call:
        with lock:
            if calls.active is not None and len(calls) >= max_waiting:
                raise BusyError(f"{len(calls)} requests are waiting already; try again in a moment")
            return calls.submit(on_turn)

    return join
