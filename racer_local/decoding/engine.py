"""One target and its generations; a target has one slot as yet, so they take turns.

Deals in token ids: which text a prompt goes on with is ``conversation``'s business, the steps are
``decode_loop``'s, and characters are the text layer's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from racer_local.books.book_set import BookSet
from racer_local.config import DraftConfig, GenerationConfig, SamplingConfig
from racer_local.decoding.conversation import Conversations
from racer_local.decoding.decode_loop import Decoding, FinishReason, Request, TokenEvent
from racer_local.decoding.generation import Generation
from racer_local.decoding.occupancy import Occupancy
from racer_local.drafting.auto.estimate import Estimator
from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.drafting.guarded_drafter import GuardedDrafter
from racer_local.drafting.make import make_drafter
from racer_local.errors import ConfigError, ContextFullError
from racer_local.measuring.cost import CostModel
from racer_local.measuring.probe import probe_steps
from racer_local.speculation.drafter import Drafter, StepOutcome
from racer_local.speculation.stats import Stats
from racer_local.speculation.target import Target, TokenSampler
from racer_local.speculation.tree import TokenId

__all__ = ["ENOUGH_ROWS", "Engine", "FinishReason", "Generation", "TokenEvent"]

# Rows of a tree beyond which hardly any step of `auto` goes on a processor.
ENOUGH_ROWS = 16


@dataclass(frozen=True, slots=True)
class _Drafting:
    """How to draft: what was asked for, and how many nodes that would be in one step."""

    draft: DraftConfig | Drafter
    n_asked: int
    make: Callable[[], GuardedDrafter]


class Engine:
    """Joins one target with drafters; serves one generation at a time.

    Calls from several threads wait for each other. A thread that would wait for a generation of
    its own gets a ``BusyError``. What the cache holds of a text and what a drafter learned from
    it is kept from one generation to the next; see ``conversation``.
    """

    def __init__(
        self,
        target: Target,
        draft: DraftConfig | None = None,
        *,
        cost: CostModel | None = None,
        row_memory: RowMemory | None = None,
        exact_rows: int = 0,
        books: BookSet | None = None,
    ) -> None:
        """Take over a target; it is not closed by the engine.

        Args:
            target: evaluates trees.
            draft: how to draft at first.
            cost: what decode steps take, if known; else measured when ``auto`` needs it.
            row_memory: rows of other texts, for ``auto``.
            exact_rows: rows of a tree that are computed as single ones are. Where they are as
                many as seldom pay anyway, ``auto`` keeps to them: its text is then that of plain
                decoding, at no cost.
            books: phrase books, for ``auto``.

        Raises:
            ConfigError: the target was opened for smaller trees.
        """
        self.target = target
        self.cost = cost
        self._row_memory = row_memory
        self._exact_rows = exact_rows
        self._books = books
        # Estimates belong to a model, not to one of its texts.
        self._estimator = Estimator()
        self._occupancy = Occupancy(target)
        self._drafting = self._plan(DraftConfig(mode="off"), None)
        self._conversations = Conversations(
            target, self._drafting.make, target.max_states, target.max_state_bytes
        )
        self.use(draft or DraftConfig())

    @property
    def drafter(self) -> GuardedDrafter:
        """The drafter of the latest conversation."""
        return self._conversations.drafter

    # --- how to draft ---------------------------------------------------------------------

    def use(self, draft: DraftConfig | Drafter, budget: int | None = None) -> None:
        """Draft differently from the next generation on; what was learned is dropped.

        Args:
            draft: settings, or a drafter of the caller's.
            budget: most draft nodes in one step, for a drafter of the caller's.

        On an exact target a larger budget is cut to what stays exact.

        Raises:
            BusyError: this thread has an unfinished generation.
            ConfigError: the target was opened for smaller trees.
        """
        with self._occupancy.block():
            self._drafting = self._plan(draft, budget)
            self._conversations.use(self._drafting.make)

    @contextlib.contextmanager
    def drafting(self, draft: DraftConfig) -> Iterator[None]:
        """Draft differently in a ``with`` block; what was learned before is there again afterwards.

        Other threads wait. A generation that is unfinished at the end is closed. Settings that are
        in use already change nothing.

        Raises:
            BusyError: this thread has an unfinished generation.
            ConfigError: the target was opened for smaller trees.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._occupancy.block())
            if draft != self._drafting.draft:
                stack.enter_context(self._conversations.kept_drafters())
                stack.enter_context(self._using(draft))
            stack.callback(self._occupancy.close_unfinished)
            yield

    @contextlib.contextmanager
    def aside(self, draft: DraftConfig) -> Iterator[None]:
        """Generate from an empty cache in a ``with`` block, with a drafter that knows nothing.

        The texts and all that was learned from them are there again afterwards, the text in the
        cache among the saved ones. Otherwise like ``drafting``.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._occupancy.block())
            stack.enter_context(self._conversations.aside())
            stack.enter_context(self._using(draft))
            stack.callback(self._occupancy.close_unfinished)
            yield

    @contextlib.contextmanager
    def _using(self, draft: DraftConfig) -> Iterator[None]:
        before = self._drafting
        try:
            self.use(draft)
            yield
        finally:
            self._drafting = before

    def _plan(self, draft: DraftConfig | Drafter, budget: int | None) -> _Drafting:
        """Decide on the budget and on what makes drafters."""
        max_nodes = self.target.max_nodes
        if isinstance(draft, DraftConfig):
            n_asked = 0 if draft.mode == "off" else draft.budget
            if draft.mode == "auto" and self._exact_rows >= ENOUGH_ROWS:
                n_asked = min(n_asked, self._exact_rows - 1)
        else:
            n_asked = max_nodes if budget is None else budget
        if self.target.is_exact and max_nodes:
            n_asked = min(n_asked, max_nodes)
        if max_nodes and n_asked > max_nodes:
            raise ConfigError(
                f"draft budget is {n_asked}, but the model was opened for trees of at most "
                f"{max_nodes} nodes"
            )
        n_nodes = min(n_asked, max_nodes)
        if not isinstance(draft, DraftConfig):
            own = GuardedDrafter(draft, type(draft).__name__, n_nodes)
            return _Drafting(draft, n_asked, lambda: own)
        config = replace(draft, budget=n_asked) if n_asked else draft
        cost = self._measured_cost() if config.mode == "auto" else None
        make = partial(_make, config, n_nodes, cost, self._row_memory, self._estimator, self._books)
        if n_asked and config.memory == "conversation":
            return _Drafting(draft, n_asked, make)
        one_for_all = make()
        return _Drafting(draft, n_asked, lambda: one_for_all)

    def _measured_cost(self) -> CostModel | None:
        """Know what steps cost here; measured once, by a short probe of an empty target."""
        if self.cost is None and self.target.max_nodes:
            n_max = self.target.max_nodes + 1
            with self._conversations.aside():
                probe = probe_steps(self.target, n_max)
            self.cost = CostModel.of_probe(probe.points, n_max, probe.context_cost)
        return self.cost

    # --- generations ----------------------------------------------------------------------

    def generate(
        self,
        prompt: Sequence[TokenId],
        sampling: SamplingConfig | None = None,
        limits: GenerationConfig | None = None,
        *,
        make_sampler: Callable[[], TokenSampler] | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        on_prompt_rows: Callable[[NDArray[np.int32], NDArray[np.float32]], None] | None = None,
        on_step: Callable[[StepOutcome], None] | None = None,
    ) -> Generation:
        """Generate what follows ``prompt``.

        Args:
            prompt: token ids, at least one.
            sampling: how tokens are chosen.
            limits: when to end. Stop strings are the text layer's.
            make_sampler: makes a sampler of the caller's, in place of one for ``sampling``.
            on_prefill: called with (tokens read, tokens to read) while the prompt is read.
            on_prompt_rows: called with the logits of every position of the prompt, which is
                therefore read as a whole: positions int32 [n], logits float32 [n, n_vocab], a view.
            on_step: called with every decode step after it was learned from.

        Returns:
            A generation; errors of the model come from its iteration.

        Raises:
            ConfigError: the prompt is empty or has a token outside the vocabulary.
            ContextFullError: the prompt leaves no room for an answer.
        """
        tokens = [int(token) for token in prompt]
        if not tokens:
            raise ConfigError("the prompt is empty; give at least one token")
        if min(tokens) < 0 or max(tokens) >= self.target.n_vocab:
            raise ConfigError(
                f"the prompt has a token id outside the vocabulary of {self.target.n_vocab}"
            )
        if len(tokens) >= self.target.n_ctx:
            raise ContextFullError(len(tokens), self.target.n_ctx)
        request = Request(
            prompt=tokens,
            sampling=sampling or SamplingConfig(),
            limits=limits or GenerationConfig(),
            make_sampler=make_sampler,
            on_prefill=on_prefill,
            on_prompt_rows=on_prompt_rows,
            on_step=on_step,
        )
        return Generation(self.target, self._occupancy, self._prepare, request)

    def cancel(self) -> None:
        """End the running generation within one decode step; without one, do nothing.

        May be called from any thread. The generation finishes with reason ``cancelled``.
        """
        running = self._occupancy.running
        if running is not None:
            running.cancel()

    def forget(self) -> None:
        """Drop the text in the cache, all saved ones, and all that drafters learned.

        Raises:
            BusyError: this thread has an unfinished generation.
        """
        with self._occupancy.block():
            self._conversations.forget()

    def _prepare(self, request: Request, stats: Stats) -> Decoding:
        """Put what is kept of the prompt's text in place, and make a sampler."""
        self._conversations.enter(request.prompt)
        if request.on_prompt_rows is not None:
            self.target.rewind(0)
        stats.draft = self.drafter.mode
        if self._drafting.n_asked and not self.target.max_nodes:
            stats.notices.append("drafting is off: this model cannot take drafts back")
        make_sampler = request.make_sampler
        sampler = make_sampler() if make_sampler else self.target.sampler(request.sampling)
        stats.seed = sampler.seed
        return Decoding(self.target, self.target, self.drafter, request, sampler, stats)


def _make(
    config: DraftConfig,
    n_nodes: int,
    cost: CostModel | None,
    row_memory: RowMemory | None,
    estimator: Estimator,
    books: BookSet | None,
) -> GuardedDrafter:
    drafter = make_drafter(config, cost, row_memory, estimator, books)
    return GuardedDrafter(drafter, config.mode, n_nodes, config.memory)
