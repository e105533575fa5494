"""The served model: loaded, lent to one request at a time, unloaded when idle.

There is one queue, which outlives the model, and one thread: loading, answering and unloading are
turns of that queue on the compute thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import time
from typing import Literal, TypeAlias

from racer_local.backend.model import LlamaModel
from racer_local.concurrency.call_queue import Call, CallQueue
from racer_local.concurrency.compute_thread import compute_thread
from racer_local.concurrency.stepwise import submit_steps
from racer_local.decoding.session import Session
from racer_local.errors import ClosedError

__all__ = ["ModelHost", "ModelState", "QueueFullError", "ServedModel"]

logger = logging.getLogger(__name__)

ModelState: TypeAlias = Literal["loading", "ready", "unloaded", "failed", "stopping"]


class QueueFullError(Exception):
    """As many calls wait as may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What clients can ask about the model, loaded or not.

    Attributes:
        id: its name.
        n_ctx: size of the context that is served.
        n_ctx_train: what the model was trained with; 0 if the file does not say.
        created: when serving began, seconds since 1970.
    """

    id: str
    n_ctx: int
    n_ctx_train: int
    created: int


class ModelHost:
    """Owns the model.

    Attributes:
        calls: who is served, and who waits.
        facts: about the model.
        error: why it could not be loaded at the start.
    """

    def __init__(
        self,
        open_session: Callable[[CallQueue], Session],
        *,
        name: str,
        n_ctx: int,
        n_ctx_train: int,
        max_queue: int,
        idle_unload_s: float | None = None,
        on_state: Callable[[ModelState], None] | None = None,
    ) -> None:
        """Prepare; ``start`` begins to load.

        Args:
            open_session: opens the model, to serve this queue; called on the compute thread.
            name: to answer under.
            n_ctx: the context size that ``open_session`` asks for.
            n_ctx_train: as the file says.
            max_queue: calls that may wait.
            idle_unload_s: seconds without a call before the model is unloaded.
            on_state: called with every new state but ``stopping``; on the compute thread.
        """
        self.calls = CallQueue(self._on_idle)
        self.facts = ServedModel(id=name, n_ctx=n_ctx, n_ctx_train=n_ctx_train, created=int(time()))
        self.error: BaseException | None = None
        self._open = open_session
        self._max_queue = max_queue
        self._idle_unload_s = idle_unload_s
        self._on_state = on_state
        self._compute = compute_thread()
        self._state: ModelState = "loading"
        self._session: Session | None = None
        # Held while the vocabulary is used outside of any turn.
        self._in_use = threading.Lock()
        self._joining = threading.RLock()
        self._n_joined = 0
        self._timer: threading.Timer | None = None

    @property
    def state(self) -> ModelState:
        """What can be expected of it."""
        return self._state

    def _enter(self, state: ModelState) -> None:
        if self._state != "stopping":
            self._state = state
            if self._on_state is not None:
                self._on_state(state)

    # --- turns ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to load."""

        def load(_: Call) -> Iterator[None]:
            self.session()
            yield

        def end(error: BaseException | None) -> None:
            if error is not None:
                self.error = error
                self.calls.close()
                self._enter("failed")

        submit_steps(self.calls, self._compute, load, end)

    def join(self, on_turn: Callable[[Call], None]) -> Call:
        """Join the queue; see ``CallQueue.submit``.

        Raises:
            ClosedError: the server is stopping.
            QueueFullError: too many wait.
        """
        return self._joined(lambda: self.calls.submit(on_turn))

    def submit(
        self,
        work: Callable[[Session, Call], Iterator[None]],
        on_end: Callable[[BaseException | None], None],
    ) -> Call:
        """Have ``work`` done on the compute thread in its turn; see ``Session.serve``.

        Raises:
            ClosedError: the server is stopping.
            QueueFullError: too many wait.
        """

        def steps(call: Call) -> Iterator[None]:
            yield from work(self.session(), call)

        return self._joined(lambda: submit_steps(self.calls, self._compute, steps, on_end))

    def _joined(self, submit: Callable[[], Call]) -> Call:
        with self._joining:
            if self.calls.active is not None and len(self.calls) >= self._max_queue:
                raise QueueFullError
            self._n_joined += 1
            if self._timer is not None:
                self._timer.cancel()
            return submit()

    def session(self) -> Session:
        """Return the model, loaded again if it was unloaded; from any thread, within a turn.

        Raises:
            RacerError: it cannot be loaded.
        """
        if self._session is None:
            self._compute.run(self._load)
        assert self._session is not None
        return self._session

    @contextlib.contextmanager
    def vocabulary(self) -> Iterator[LlamaModel | None]:
        """Keep the model loaded, to tokenize outside of any turn; None where it is not loaded."""
        with self._in_use:
            yield None if self._session is None else self._session.model

    # --- loading and unloading --------------------------------------------------------------

    def _load(self) -> None:
        session = self._open(self.calls)
        with self._in_use:
            self._session = session
        self._enter("ready")

    def _unload(self) -> None:
        with self._in_use:
            session, self._session = self._session, None
        if session is not None:
            session.leave()

    def _on_idle(self) -> None:
        if self._idle_unload_s is None or self._session is None or self.calls.is_closed:
            return
        with self._joining:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(self._idle_unload_s, self._unload_idle, [self._n_joined])
            self._timer.daemon = True
            self._timer.start()

    def _unload_idle(self, n_joined: int) -> None:
        """Unload, unless somebody joined the queue meanwhile."""

        def unload(_: Call) -> Iterator[None]:
            if n_joined == self._n_joined:
                logger.info("nobody asked anything for a while; unloading the model")
                self._unload()
                self._enter("unloaded")
            yield

        with contextlib.suppress(ClosedError):
            submit_steps(self.calls, self._compute, unload, lambda _: None)

    def stop(self) -> None:
        """Take no more calls and end the running one; ``wait_closed`` frees the model."""
        self._state = "stopping"
        if self._timer is not None:
            self._timer.cancel()
        self.calls.close()
        self.calls.cancel()

    def wait_closed(self, timeout_s: float | None = None) -> None:
        """Wait for the running call and free the model; after ``stop``."""
        if self.calls.wait_until_idle(timeout_s):
            self._compute.run(self._unload)
