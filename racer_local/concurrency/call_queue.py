"""Calls on one model, served one after the other in the order they came. Layer: pure."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic

from racer_local.concurrency.closing import Closing
from racer_local.errors import BusyError, ClosedError

__all__ = ["NO_THREAD", "Call", "CallQueue"]

# The thread of a call that nobody works on any more.
NO_THREAD = 0
# Waiting without a limit cannot be interrupted on Windows.
_POLL_S = 0.2

# The calls that this flow of execution opened, to find out waiting for oneself.
_opened: ContextVar[tuple[Call, ...]] = ContextVar("racer_local_opened_calls", default=())


class Call(Closing):
    """One call: waiting, then being served, then over.

    Attributes:
        is_cancelled: whether ``cancel`` was called.
        on_cancel: what ``cancel`` calls while the call is being served.
        thread: the thread that worked on it last.
        waited_s: seconds from its beginning to its turn; None before that.
    """

    def __init__(self, calls: CallQueue, on_turn: Callable[[Call], None]) -> None:
        """Prepare; ``CallQueue.submit`` and ``enter`` make these."""
        self._calls = calls
        self._on_turn: Callable[[Call], None] | None = on_turn
        self._lock = threading.RLock()
        self._made = monotonic()
        self.is_cancelled = False
        self.on_cancel: Callable[[], None] | None = None
        self.thread = threading.get_ident()
        self.waited_s: float | None = None

    @property
    def is_served(self) -> bool:
        """Whether it has its turn and is not over."""
        return self._calls.active is self

    def cancel(self) -> None:
        """End it soon, or let it leave the queue at once if it waits; from any thread."""
        with self._lock:
            self.is_cancelled = True
            if self.on_cancel is not None:
                self.on_cancel()
        self._calls._drop(self)

    def watch(self, on_cancel: Callable[[], None] | None) -> None:
        """Have ``on_cancel`` called by ``cancel``, also by one that came before."""
        with self._lock:
            self.on_cancel = on_cancel
            if self.is_cancelled and on_cancel is not None:
                on_cancel()

    def close(self) -> None:
        """Let the next call be served; a second call does nothing."""
        self._calls._leave(self)

    def _tell(self) -> None:
        """Tell, once, that the turn has come or never will."""
        self.waited_s = monotonic() - self._made
        on_turn, self._on_turn = self._on_turn, None
        if on_turn is not None:
            on_turn(self)


class CallQueue:
    """Hands a model to one call at a time, first come, first served."""

    def __init__(self, on_idle: Callable[[], None] | None = None) -> None:
        """Start with nobody waiting.

        Args:
            on_idle: called whenever a call ended and none follows, on the thread that ended it.
        """
        self._on_idle = on_idle
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._waiting: deque[Call] = deque()
        self._active: Call | None = None
        self._is_closed = False

    @property
    def active(self) -> Call | None:
        """The call that is being served."""
        return self._active

    @property
    def is_closed(self) -> bool:
        """Whether no more calls are taken."""
        return self._is_closed

    def __len__(self) -> int:
        """Count the waiting calls."""
        return len(self._waiting)

    def n_ahead(self, call: Call) -> int:
        """Count those that are served before a call; 0 also where it is not waiting."""
        with self._lock:
            return self._waiting.index(call) + 1 if call in self._waiting else 0

    def submit(self, on_turn: Callable[[Call], None]) -> Call:
        """Join the queue without waiting.

        Args:
            on_turn: called once, on whatever thread it happens: when the turn has come
                (``is_served``), or never will, because the call was cancelled or the queue was
                closed. It must not take long, and not raise.

        Raises:
            ClosedError: the model was closed.
        """
        call = Call(self, on_turn)
        self._join(call)
        return call

    def _join(self, call: Call) -> None:
        with self._lock:
            self._check_open()
            is_first = self._active is None
            is_waiting = not is_first and not call.is_cancelled
            if is_first:
                self._active = call
            elif is_waiting:
                self._waiting.append(call)
        if not is_waiting:
            call._tell()

    def enter(
        self, timeout_s: float | None = None, on_begin: Callable[[Call], None] | None = None
    ) -> Call:
        """Wait for the own turn.

        Args:
            timeout_s: how long to wait at most; None waits as long as it takes.
            on_begin: is given the call before it waits.

        Raises:
            BusyError: it took longer, or this very flow of execution has an unfinished stream
                on the model, for which it would wait for ever.
            ClosedError: the model was closed meanwhile.
        """
        turn = threading.Event()
        call = Call(self, lambda _: turn.set())
        if on_begin is not None:
            on_begin(call)
        self._check_open()
        active = self._active
        if active is not None and active in _opened.get() and active.thread == call.thread:
            raise BusyError(
                "this thread has an unfinished stream on the same model; read it to its end or "
                "close() it first"
            )
        self._join(call)
        self._wait(call, turn, timeout_s)
        _opened.set((*(c for c in _opened.get() if c.is_served), call))
        return call

    def _wait(self, call: Call, turn: threading.Event, timeout_s: float | None) -> None:
        ends = None if timeout_s is None else monotonic() + timeout_s
        try:
            while not turn.is_set():
                left = _POLL_S if ends is None else ends - monotonic()
                if left <= 0:
                    raise BusyError(
                        f"the model is busy: {timeout_s:g} s were not enough to get a turn, with "
                        f"{len(self._waiting)} calls waiting"
                    )
                turn.wait(min(left, _POLL_S))
            self._check_open()
            if not call.is_served:
                raise BusyError("the call was cancelled while it waited for its turn")
        except BaseException:
            self._leave(call)
            raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the model was closed; open it again to use it")

    def _drop(self, call: Call) -> None:
        """Take a call that waits out of the queue."""
        with self._lock:
            is_waiting = call in self._waiting
            if is_waiting:
                self._waiting.remove(call)
        if is_waiting:
            call._tell()

    def _leave(self, call: Call) -> None:
        with self._lock:
            if call is not self._active:
                if call in self._waiting:
                    self._waiting.remove(call)
                return
            following = self._active = self._waiting.popleft() if self._waiting else None
            self._left.notify_all()
        if following is not None:
            following._tell()
        elif self._on_idle is not None:
            self._on_idle()

    def wait_until_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until no call is being served; False if that took longer."""
        with self._left:
            return self._left.wait_for(lambda: self._active is None, timeout_s)

    def cancel(self) -> bool:
        """End the call that is being served soon; False where there is none."""
        call = self._active
        if call is None:
            return False
        call.cancel()
        return True

    def close(self) -> None:
        """Refuse all calls from now on; those that wait are told."""
        with self._lock:
            self._is_closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
        for call in waiting:
            call._tell()
