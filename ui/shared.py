"""The page of a model that the HTTP server owns: one queue, one thread, one cache for both.

Drafting and cache are left as the server's clients had them. Knows no Gradio.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from racer_local.backend.native import physical_cores
from racer_local.bench.contest import BenchModel
from racer_local.concurrency.call_queue import Call
from racer_local.concurrency.compute_thread import compute_thread
from racer_local.config import DraftConfig, ModelConfig
from racer_local.errors import BusyError, ConfigError
from racer_local.gguf.header import inspect_gguf
from racer_local.server.host import ModelHost, QueueFullError

from .facts import facts_of
from .service import Ask, PageService
from .turns import Turn, Turns

__all__ = ["SharedService"]


class SharedService(PageService):
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
        self._compute = compute_thread()
        self._turns = Turns(host.calls, self._join)
        # Until it is loaded: what its file says.
        self.facts = facts_of(
            inspect_gguf(config.path),
            n_ctx=host.facts.n_ctx,
            max_nodes=config.max_nodes,
            is_exact=config.exact,
        )

    def _join(self, on_turn: Callable[[Call], None]) -> Call:
        if self._host.state == "loading":
            raise BusyError("the model is still being loaded; try again in a moment")
        try:
            return self._host.join(on_turn)
        except QueueFullError:
            raise BusyError(
                f"{len(self._host.calls)} requests are waiting already; try again in a moment"
            ) from None

    @property
    def _n_threads(self) -> int:
        # The model need not be loaded.
        return self._config.n_threads or physical_cores()

    def _submit(self, turn: Turn, function: Callable[[], None]) -> Future[None]:
        def with_model() -> None:
            if not turn.call.is_served:
                raise BusyError("it was stopped before it began")
            self._model = self._host.session()
            self.facts = self._look()
            self._model.within(turn.call, function)

        return self._compute.begin(with_model)

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

    def work(self, turn: Turn, function: Callable[[BenchModel], None]) -> Future[None]:
        """Refuse: others would wait for as long as it takes.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("this model is the server's; racer-local bench measures one by itself")

    def close(self) -> None:
        """Stop the pages' work; the model is the server's."""
        self.stop_all()
