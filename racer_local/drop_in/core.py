"""An open model behind ``RacerLlama``: target, engine, the queue of calls, the compute thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from racer_local.backend.adopted import AdoptedTarget
from racer_local.backend.chain import ChainConfig, ChainSampler
from racer_local.backend.model import LlamaModel
from racer_local.backend.native import runtime_version
from racer_local.books.book_set import Shelf
from racer_local.concurrency.call_queue import Call, CallQueue
from racer_local.concurrency.compute_thread import compute_thread
from racer_local.config import DraftConfig, GenerationConfig, ModelConfig
from racer_local.decoding.engine import Engine
from racer_local.decoding.text_model import TextModel
from racer_local.drafting.auto.row_memory_store import load_row_memory
from racer_local.drop_in.token_stream import TokenStream
from racer_local.errors import ClosedError
from racer_local.measuring.cost_store import CostStore
from racer_local.measuring.exactness import find_exact_rows
from racer_local.speculation.tree import TokenId

__all__ = ["Core", "Observers", "RowsObserver"]

RowsObserver = Callable[[NDArray[np.int32], NDArray[np.float32]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Who is told what while a prompt is read; called on the compute thread.

    Attributes:
        on_prefill: is told (tokens read, tokens to read).
        on_prompt_rows: is shown the logits of every place of the prompt.
    """

    on_prefill: Callable[[int, int], None] | None = None
    on_prompt_rows: RowsObserver | None = None


class Core:
    """What computes. All native work that lasts is done on the compute thread.

    Attributes:
        calls: who is served, and who waits.
        target: the context.
        engine: the decode loop.
    """

    def __init__(
        self,
        model: LlamaModel,
        config: ModelConfig,
        draft: DraftConfig,
        ctx: object,
        books: Shelf | None = None,
    ) -> None:
        """Take over an open model and context; the costs of steps are measured if not known.

        Raises:
            DecodeError: the context cannot decode.
        """
        self.calls = CallQueue()
        self.model = model
        self._pieces: dict[TokenId, bytes] = {}
        self._books = Shelf([]) if books is None else books
        self.compute = compute_thread()
        self.compute.run(lambda: self._open(config, draft, ctx))
        self.compute.stop_at_exit(self.calls)

    def _open(self, config: ModelConfig, draft: DraftConfig, ctx: object) -> None:
        self.target = target = AdoptedTarget(self.model, config, ctx)
        self._costs = CostStore(config, target.kv_type, target.n_threads, runtime_version())
        exact_rows = find_exact_rows(target, self._costs)
        memory = load_row_memory(config.path) if target.max_nodes else None
        self.engine = Engine(
            target,
            draft,
            cost=self._costs.load(),
            row_memory=memory,
            books=self._books,
            exact_rows=exact_rows,
        )

    def text_model(self) -> TextModel:
        """Return what is open here as the commands see a model; for the compute thread."""
        return TextModel.over(self.model, self.target, self.engine, self._books)

    def piece(self, token: TokenId) -> bytes:
        """Return the bytes of a token; a control token has none."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self.model.piece(token)
        return piece

    def require_open(self) -> None:
        """Raise ``ClosedError`` if the model was closed."""
        if self.target.is_closed:
            raise ClosedError("the model was closed; open it again to use it")

    def stream(
        self,
        call: Call,
        prompt: Sequence[TokenId],
        chain: ChainConfig,
        limits: GenerationConfig,
        observers: Observers | None = None,
        *,
        ahead: bool = False,
    ) -> TokenStream:
        """Generate what follows ``prompt``; see ``Engine.generate`` and ``TokenStream``."""
        self.require_open()
        observers = observers or Observers()
        sampler = ChainSampler(chain, self.target, prompt)
        return TokenStream(
            self.engine,
            self.target,
            self.compute,
            call,
            prompt,
            sampler,
            limits,
            on_prefill=observers.on_prefill,
            on_prompt_rows=observers.on_prompt_rows,
            ahead=ahead,
        )

    def close(self) -> None:
        """Leave the context, which its owner can free then; a second call does nothing."""
        self.calls.close()
        self.calls.cancel()
        with contextlib.suppress(ClosedError):
            self.compute.run(self.leave)
        self.leave()

    def leave(self) -> None:
        """Like ``close`` where nothing can be running: no waiting, any thread."""
        if not self.target.is_closed:
            if self.engine.cost is not None:
                self._costs.save(self.engine.cost)
            self.target.close()
            self.model.close()
