"""Who may use the model now, and how it is closed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from racer_local.concurrency.aio import CallHandle
from racer_local.concurrency.call_queue import Call
from racer_local.decoding.session import Session
from racer_local.drop_in.opening import OpeningLlama
from racer_local.errors import BusyError, ConfigError

__all__ = ["CallingLlama"]


class CallingLlama(OpeningLlama):
    """Adds turns, cancelling and closing.

    Attributes:
        wait_timeout_s: how long a call waits for its turn before ``BusyError``; None waits.
    """

    wait_timeout_s: float | None = None
    _local: threading.local

    def _require_session(self) -> Session:
        if self._session is None:
            raise ConfigError("this model was opened with embedding or vocab_only; it cannot write")
        return self._session

    @contextlib.contextmanager
    def _call(
        self, timeout_s: float | None = None, handle: CallHandle | None = None
    ) -> Iterator[Call]:
        """Wait for a turn; inside a call that is being served, go on with that one."""
        mine: Call | None = getattr(self._local, "call", None)
        if mine is not None:
            yield mine
            return
        session = self._require_session()
        if session.compute.is_current:
            raise BusyError("a callback of a running call cannot call a model")
        timeout = self.wait_timeout_s if timeout_s is None else timeout_s
        if handle is None:
            handle = getattr(self._local, "handle", None)
        on_begin = None if handle is None else handle.attach
        with session.calls.enter(timeout, on_begin) as call:
            session.require_open()
            yield call

    @contextlib.contextmanager
    def _inside(self, call: Call) -> Iterator[None]:
        """Mark this thread as working on a call while code of upstream's runs."""
        call.thread = threading.get_ident()
        before = getattr(self._local, "call", None)
        self._local.call = call
        try:
            yield
        finally:
            self._local.call = before

    def cancel(self) -> bool:
        """End the running call within one decode step, or while it reads its prompt.

        From any thread. The call returns what it has, with finish reason ``cancelled``.

        Returns:
            False if nothing was running.
        """
        return self._session is not None and self._session.cancel()

    def close(self) -> None:
        """Free context and model; a running call ends first. A second call does nothing."""
        if self._session is not None:
            self._session.close()
        self._free()

    def _free(self) -> None:
        # A constructor that failed left no stack, or a part of one.
        stack = self.__dict__.get("_stack")
        if stack is not None:
            stack.close()

    def __del__(self) -> None:
        """Free what was not closed; nothing can be running on it any more."""
        with contextlib.suppress(Exception):
            session = self.__dict__.get("_session")
            if session is not None:
                session.leave()
            self._free()
