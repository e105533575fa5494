"""The page of a model that the HTTP server owns: one queue, one thread, one cache for both.

A page's turn is a place in the server's own queue, and its work is done there, on the model's
thread. Drafting and cache are left as the server's clients had them. Knows no Gradio.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from racer_local.backend.native import physical_cores
from racer_local.bench.contest import BenchModel
from racer_local.concurrency.aio import CallHandle
from racer_local.config import DraftConfig, ModelConfig
from racer_local.decoding.text_model import TextModel
from racer_local.drop_in.llama import RacerLlama
from racer_local.errors import BusyError, ConfigError
from racer_local.gguf.header import inspect_gguf
from racer_local.server.host import ModelHost
from racer_local.server.jobs import QueueFullError

from .service import Ask, Service, facts_of
from .turns import Turn

__all__ = ["SharedService"]

_Item: TypeAlias = tuple[Callable[[TextModel], None], "Future[None]"]


class _Place:
    """A turn's place in the server's queue; once it is served, the turn's work is done in it.

    Attributes:
        is_open: set once the turn has come, or will not come any more.
        error: why the model could not be had.
    """

    def __init__(self, turn: Turn, host: ModelHost) -> None:
        self.is_open = threading.Event()
        self.error: BaseException | None = None
        self._turn = turn
        self._host = host
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._handle: CallHandle | None = None
        self._is_over = False

    def run(self) -> None:
        """Do what the page submits until it leaves; on the model's thread."""
        try:
            llama = self._host.llama
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self.error = error
            self.finish()
            return
        self.is_open.set()
        while (item := self._items.get()) is not None:
            self._do(llama, *item)
        self.finish()

    def _do(
        self, llama: RacerLlama, function: Callable[[TextModel], None], future: Future[None]
    ) -> None:
        handle = CallHandle()
        with self._lock:
            self._handle = handle
        try:
            if self._turn.is_cancelled.is_set():
                handle.cancel()
            future.set_result(llama.lend(function, handle=handle))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            future.set_exception(error)
        finally:
            with self._lock:
                self._handle = None

    def submit(self, function: Callable[[TextModel], None]) -> Future[None]:
        """Have a function called with the model."""
        future: Future[None] = Future()
        with self._lock:
            if self._is_over:
                raise BusyError("it was stopped before it began")
            self._items.put((function, future))
        return future

    def leave(self) -> None:
        """Let the next one in, once the work at hand is done."""
        self._items.put(None)

    def cancel(self) -> None:
        """End the work at hand soon, and then leave."""
        with self._lock:
            if self._is_over:
                return
            self._turn.is_cancelled.set()
            if self._handle is not None:
                self._handle.cancel()
        self._items.put(None)
        self.is_open.set()

    def finish(self) -> None:
        """Take no more work."""
        with self._lock:
            self._is_over = True
        while not self._items.empty():
            item = self._items.get()
            if item is not None:
                item[1].set_exception(BusyError("it was stopped before it began"))
        self.is_open.set()


class _SharedTurns:
    """Places in the server's queue, one for each session of a page; see ``Turns``."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._places: dict[Turn, _Place] = {}

    def take(self, session: str) -> Turn:
        self.stop(session)
        if self._host.state == "loading":
            raise BusyError("the model is still being loaded; try again in a moment")
        turn = Turn(self, session)
        place = _Place(turn, self._host)
        try:
            self._host.jobs.add(place)
        except QueueFullError:
            if self._host.jobs.is_closed:
                raise BusyError("the program is being closed") from None
            raise BusyError(
                f"{len(self._host.jobs)} requests are waiting already; try again in a moment"
            ) from None
        with self._lock:
            self._places[turn] = place
        return turn

    def _place(self, turn: Turn) -> _Place | None:
        with self._lock:
            return self._places.get(turn)

    def submit(self, turn: Turn, function: Callable[[TextModel], None]) -> Future[None]:
        place = self._place(turn)
        if place is None:
            raise BusyError("it was stopped before it began")
        return place.submit(function)

    def stop(self, session: str) -> None:
        with self._lock:
            mine = [turn for turn in self._places if turn.session == session]
        for turn in mine:
            self.cancel(turn)

    def close(self) -> None:
        with self._lock:
            turns = list(self._places)
        for turn in turns:
            self.cancel(turn)

    def n_ahead(self, turn: Turn) -> int:
        place = self._place(turn)
        return 0 if place is None else self._host.jobs.n_ahead(place)

    def wait(self, turn: Turn, timeout_s: float) -> bool:
        """See ``Turn.wait``.

        Raises:
            RacerError: the model could not be loaded again.
        """
        place = self._place(turn)
        if place is None:
            return True
        has_come = place.is_open.wait(timeout_s)
        if place.error is not None:
            raise place.error
        return has_come

    def cancel(self, turn: Turn) -> None:
        place = self._place(turn)
        if place is not None:
            turn.is_cancelled.set()
            self._host.jobs.drop(place)

    def leave(self, turn: Turn) -> None:
        with self._lock:
            place = self._places.pop(turn, None)
        if place is not None and self._host.jobs.n_ahead(place):
            self._host.jobs.drop(place)
        elif place is not None:
            place.leave()


class SharedService(Service):
    """Runs a page's answers on the model of a server, in the server's queue.

    The model cannot be exchanged from the page, nor opened in another way, and no benchmark runs:
    others use it.
    """

    is_shared = True

    def __init__(self, host: ModelHost, config: ModelConfig, draft: DraftConfig) -> None:
        """Use what ``host`` opens; nothing has to be loaded yet.

        Args:
            host: owns the model.
            config: that it is opened with.
            draft: how it drafts for its other clients.

        Raises:
            RacerError: the file cannot be read.
        """
        self._host = host
        self._config = config
        self.draft = draft
        self._turns: _SharedTurns = _SharedTurns(host)
        # Until it is loaded: what its file says.
        self.facts = facts_of(
            inspect_gguf(config.path),
            n_ctx=host.facts.n_ctx,
            max_nodes=config.max_nodes,
            is_exact=config.exact,
        )

    @property
    def _n_threads(self) -> int:
        # The model need not be loaded.
        return self._config.n_threads or physical_cores()

    def _submit(self, turn: Turn, function: Callable[[], None]) -> Future[None]:
        def with_model(model: TextModel) -> None:
            self._model = model
            self.facts = self._look()
            function()

        return self._turns.submit(turn, with_model)

    @contextlib.contextmanager
    def _prepared(self, ask: Ask) -> Iterator[None]:
        engine = self._model.engine
        draft = replace(self._fitted(ask.draft), memory=self.draft.memory)
        with engine.aside(draft) if ask.is_fresh else engine.drafting(draft):
            yield

    def load(
        self,
        on_progress: Callable[[float], None],
        *,
        path: Path | None = None,
        is_exact: bool | None = None,
        remembers: bool | None = None,
    ) -> None:
        """Refuse: the server's clients count on this model.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("this model is the server's; another one needs another server")

    def work(self, function: Callable[[BenchModel], Any]) -> Any:
        """Refuse: others would wait for as long as it takes.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("this model is the server's; racer-local bench measures one by itself")

    def close(self) -> None:
        """Stop the pages' work; the model is the server's."""
        self.stop_all()
