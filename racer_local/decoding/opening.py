"""The only place where a model is opened: weights, context, step costs, engine.

Runs on the thread that is to compute. On any failure what was opened is freed again, the context
before the model.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from racer_local.backend.adopted import AdoptedTarget
from racer_local.backend.model import LlamaModel
from racer_local.backend.native import runtime_version
from racer_local.backend.target import LlamaTarget
from racer_local.books.book_set import BookSet
from racer_local.concurrency.closing import Closing
from racer_local.config import DraftConfig, ModelConfig
from racer_local.decoding.engine import Engine
from racer_local.drafting.auto.row_memory_store import load_row_memory
from racer_local.errors import ConfigError
from racer_local.measuring.cost_store import CostStore
from racer_local.measuring.exactness import find_exact_rows

__all__ = ["OpenModel", "adopt_model", "open_model"]


class OpenModel(Closing):
    """What belongs to one open model.

    Attributes:
        model: weights and vocabulary.
        target: the context.
        engine: the decode loop.
    """

    def __init__(
        self, target: LlamaTarget, config: ModelConfig, draft: DraftConfig, books: BookSet
    ) -> None:
        """Put an engine on a target; step costs and exact rows are measured if not known.

        Raises:
            ConfigError: a book is of another tokenizer, or exact decoding is impossible.
        """
        self.model, self.target = target.model, target
        for book in books.books:
            if book.n_vocab != self.model.n_vocab:
                raise ConfigError("a phrase book has another vocabulary than the model")
        self._costs = CostStore(config, target.kv_type, target.n_threads, runtime_version())
        exact_rows = find_exact_rows(target, self._costs)
        self.engine = Engine(
            target,
            draft,
            cost=self._costs.load(),
            row_memory=load_row_memory(config.path) if target.max_nodes else None,
            exact_rows=exact_rows,
            books=books,
        )

    def close(self) -> None:
        """Keep what was measured, and free context and weights; a second call does nothing."""
        if not self.target.is_closed:
            if self.engine.cost is not None:
                self._costs.save(self.engine.cost)
            self.target.close()
            self.model.close()


def open_model(
    config: ModelConfig, draft: DraftConfig, books: BookSet, on_progress: Callable[[float], None]
) -> OpenModel:
    """Load a model and open a context.

    Args:
        config: model and settings.
        draft: how to draft.
        books: phrase books to draft from.
        on_progress: called with the loaded share, 0 to 1; an exception from it ends the load.

    Raises:
        ConfigError: a book is of another tokenizer, or exact decoding is impossible.
        ModelLoadError: the file or the context cannot be opened.
        UnsupportedModelError: the model cannot generate text.
    """
    with ExitStack() as stack:
        model = LlamaModel(config, on_progress)
        stack.callback(model.close)
        target = LlamaTarget(model, config)
        stack.callback(target.close)
        opened = OpenModel(target, config, draft, books)
        stack.pop_all()
    return opened


def adopt_model(
    model: LlamaModel,
    ctx: object,
    config: ModelConfig,
    draft: DraftConfig,
    books: BookSet,
    *,
    keeps_all_rows: bool,
) -> OpenModel:
    """Use a model and a context that somebody else opened, and frees after ``close``.

    With ``keeps_all_rows`` the context has room for the logits of a whole batch.

    Raises:
        ConfigError: a book is of another tokenizer.
        DecodeError: the context cannot decode.
    """
    target = AdoptedTarget(model, config, ctx, keeps_all_rows=keeps_all_rows)
    with ExitStack() as stack:
        stack.callback(target.close)
        opened = OpenModel(target, config, draft, books)
        stack.pop_all()
    return opened
