"""The model and the one thread that works for it: loads, serves, unloads when idle."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import time
from typing import Literal, TypeAlias

from racer_local.drop_in.llama import RacerLlama
from racer_local.server.jobs import JobQueue, Work

__all__ = ["ModelFacts", "ModelHost", "ModelState"]

logger = logging.getLogger(__name__)

ModelState: TypeAlias = Literal["loading", "ready", "unloaded", "failed", "stopping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What clients are told about the model, loaded or not.

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
        jobs: requests that wait.
        facts: about the model.
        error: why it could not be loaded.
    """

    def __init__(
        self,
        open_model: Callable[[], RacerLlama],
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
            open_model: opens it; called on the model's thread.
            name: to answer under.
            n_ctx: the context size that ``open_model`` asks for.
            n_ctx_train: as the file says.
            max_queue: requests that may wait.
            idle_unload_s: seconds without a request before it is unloaded.
            on_state: told every change; on the model's thread.
        """
        self.jobs = JobQueue(max_queue)
        self.facts = ModelFacts(id=name, n_ctx=n_ctx, n_ctx_train=n_ctx_train, created=int(time()))
        self.error: BaseException | None = None
        self._open = open_model
        self._idle_unload_s = idle_unload_s
        self._on_state = on_state
        self._state: ModelState = "loading"
        self._llama: RacerLlama | None = None
        # Held while somebody else than the model's thread looks into the vocabulary.
        self._in_use = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="racer-local-serve", daemon=True)

    @property
    def state(self) -> ModelState:
        """What can be expected of it."""
        return self._state

    def _enter(self, state: ModelState) -> None:
        self._state = state
        if self._on_state is not None:
            self._on_state(state)

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    @property
    def llama(self) -> RacerLlama:
        """The loaded model; for jobs, on the model's thread."""
        if self._llama is None:
            self._load()
        assert self._llama is not None
        return self._llama

    @contextlib.contextmanager
    def vocabulary(self) -> Iterator[RacerLlama | None]:
        """Keep the model loaded, to tokenize on any thread; None where it is not loaded."""
        with self._in_use:
            yield self._llama

    def _load(self) -> None:
        llama = self._open()
        with self._in_use:
            self._llama = llama
        self._enter("ready")

    def _unload(self) -> None:
        with self._in_use:
            llama, self._llama = self._llama, None
        if llama is not None:
            llama.close()

    def _work(self) -> None:
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - told by whoever started the server
            self.error = error
            self.jobs.close()
            self._enter("failed")
            return
        try:
            while not self.jobs.is_closed:
                self._serve_next()
        finally:
            for job in self._rest():
                job.finish()
            self._unload()

    def _rest(self) -> Iterator[Work]:
        while (job := self.jobs.take(0)) is not None:
            yield job

    def _serve_next(self) -> None:
        job = self.jobs.take(None if self._llama is None else self._idle_unload_s)
        if job is not None:
            job.run()
        elif not self.jobs.is_closed:
            logger.info("nobody asked anything for a while; unloading the model")
            self._unload()
            self._enter("unloaded")

    def stop(self) -> None:
        """Take no more requests and end the running ones; the model is freed after them."""
        self._state = "stopping"
        self.jobs.close()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the model is freed."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
