"""One target, one drafter, one generation at a time.

The only module that brings a drafter and a target together; the steps are ``decode_loop``'s. It
deals in token ids; text is the business of ``text_model``.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from racer_local.books.book_set import Shelf
from racer_local.concurrency.closing import Closing
from racer_local.config import DraftConfig, DraftMemory, GenerationConfig, SamplingConfig
from racer_local.decoding.decode_loop import ABORTED, DecodeLoop, FinishReason, Request, TokenEvent
from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.drafting.drafter_pool import DrafterPool
from racer_local.drafting.guarded_drafter import GuardedDrafter
from racer_local.drafting.make import make_drafter
from racer_local.errors import BusyError, ConfigError, ContextFullError, DecodeError
from racer_local.measuring.cost import CostModel
from racer_local.measuring.probe import probe_steps
from racer_local.speculation.drafter import Drafter, StepOutcome
from racer_local.speculation.stats import Stats
from racer_local.speculation.target import Target, TokenSampler
from racer_local.speculation.tree import TokenId

__all__ = ["ENOUGH_ROWS", "Engine", "FinishReason", "Generation", "TokenEvent"]

# Rows of a tree beyond which hardly any step of `auto` goes on a processor.
ENOUGH_ROWS = 16


class Generation(Closing, Iterator[TokenEvent]):
    """A running generation: iterate for tokens; close, or leave a ``with`` block, to end early.

    Attributes:
        prompt: token ids.
        stats: counters, true at every moment.
        finish_reason: None while it runs.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        """Prepare; nothing runs before the first token is asked for."""
        self.prompt: Sequence[TokenId] = request.prompt
        self.stats = Stats(n_prompt=len(request.prompt))
        self.finish_reason: FinishReason | None = None
        self._engine = engine
        self._is_cancelled = False
        self._events = engine._run(request, self)

    def __next__(self) -> TokenEvent:
        """Return the next token; runs a decode step where needed."""
        return next(self._events)

    def cancel(self) -> None:
        """End it within one decode step, or before it begins; from any thread."""
        engine = self._engine
        with engine._state:
            self._is_cancelled = True
            if engine._running is not None and engine._running() is self:
                engine.target.stop()

    def close(self) -> None:
        """End the generation; the engine is free for the next one."""
        self._events.close()


class Engine:
    """Joins one target and one drafter; serves one generation at a time.

    Calls from several threads wait for each other. What the KV cache and the drafter hold is
    kept from one generation to the next as far as the new prompt continues the old text.
    """

    def __init__(
        self,
        target: Target,
        draft: DraftConfig | None = None,
        *,
        cost: CostModel | None = None,
        row_memory: RowMemory | None = None,
        exact_rows: int = 0,
        books: Shelf | None = None,
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
        """
        self.target = target
        self.cost = cost
        self._row_memory = row_memory
        self._exact_rows = exact_rows
        self._books = books
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._state = threading.Lock()
        # Weak: a generation that is dropped in the middle must end.
        self._running: weakref.ref[Generation] | None = None
        self.use(draft or DraftConfig())

    def use(self, draft: DraftConfig | Drafter, budget: int | None = None) -> None:
        """Draft differently from the next generation on; what was learned is dropped.

        Args:
            draft: settings, or a drafter of one's own.
            budget: most draft nodes in one step, for a drafter of one's own.

        On an exact target a larger budget is cut to what stays exact.

        Raises:
            ConfigError: the target was opened for smaller trees.
        """
        if self.target.is_exact and self.target.max_nodes:
            if isinstance(draft, DraftConfig):
                draft = replace(draft, budget=min(draft.budget, self.target.max_nodes))
            elif budget is not None:
                budget = min(budget, self.target.max_nodes)
        self._draft = draft
        n_drafters = 1
        memory: DraftMemory = "conversation"
        make: Callable[[], Drafter]
        if isinstance(draft, DraftConfig):
            if draft.mode == "auto" and self._exact_rows >= ENOUGH_ROWS:
                draft = replace(draft, budget=min(draft.budget, self._exact_rows - 1))
            cost = self._measured_cost() if draft.mode == "auto" else None
            make = partial(make_drafter, draft, cost, self._row_memory, books=self._books)
            mode = str(draft.mode)
            budget = 0 if draft.mode == "off" else draft.budget
            memory = draft.memory
            if budget and memory == "conversation":
                n_drafters += self.target.max_states
        else:
            make, mode = (lambda: draft), type(draft).__name__
            budget = self.target.max_nodes if budget is None else budget
        if self.target.max_nodes and budget > self.target.max_nodes:
            raise ConfigError(
                f"draft budget is {budget}, but the model was opened for trees of at most "
                f"{self.target.max_nodes} nodes"
            )
        self._asked = budget
        n_nodes = min(budget, self.target.max_nodes)
        self._drafters = DrafterPool(
            lambda: GuardedDrafter(make(), mode, n_nodes, memory), n_drafters
        )
        self.drafter = self._drafters.latest

    @contextlib.contextmanager
    def drafting(self, draft: DraftConfig) -> Iterator[None]:
        """Draft differently for a while; what was learned before is there again afterwards.

        Only while nothing is generated. Settings that are in use already change nothing.
        """
        if draft == self._draft:
            yield
            return
        if draft.mode == "auto" and self.cost is None:
            with self.target.aside():
                self._measured_cost()
        before = self._draft, self._asked, self._drafters, self.drafter
        try:
            self.use(draft)
            yield
        finally:
            self._draft, self._asked, self._drafters, self.drafter = before

    @contextlib.contextmanager
    def aside(self, draft: DraftConfig) -> Iterator[None]:
        """Generate from an empty cache, with a drafter that knows nothing.

        The texts and all that was learned from them are there again afterwards, the text in the
        cache among the saved ones. Only while nothing is generated.
        """
        before = self._draft, self._asked, self._drafters, self.drafter
        with self.target.aside():
            try:
                self.use(draft)
                yield
            finally:
                self._draft, self._asked, self._drafters, self.drafter = before

    def _measured_cost(self) -> CostModel | None:
        """Know what steps cost here; measured once, by a short probe of the empty target."""
        if self.cost is None and self.target.max_nodes:
            n_max = self.target.max_nodes + 1
            probe = probe_steps(self.target, n_max)
            self.cost = CostModel.of_probe(probe.points, n_max, probe.context_cost)
        return self.cost

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
            make_sampler: makes a sampler of one's own, in place of one for ``sampling``.
            on_prefill: is told (tokens read, tokens to read) while the prompt is read.
            on_prompt_rows: is shown the logits of every place of the prompt, which is therefore
                read as a whole: places int32 [n], logits float32 [n, n_vocab], a view.
            on_step: is shown every decode step after it was learned from.

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
        return Generation(self, request)

    def cancel(self) -> None:
        """End the running generation within one decode step; without one, do nothing.

        May be called from any thread. The generation finishes with reason ``cancelled``.
        """
        running = self._running
        generation = None if running is None else running()
        if generation is not None:
            generation.cancel()

    def forget(self) -> None:
        """Drop the text in the cache and all that the drafter learned."""
        with self._lock:
            is_pooled = self.drafter is self._drafters.latest
            self.target.forget()
            self._drafters.forget()
            if is_pooled:
                self.drafter = self._drafters.latest
            else:
                self.drafter.forget()

    # --- the loop -------------------------------------------------------------------------

    def _run(self, request: Request, generation: Generation) -> Generator[TokenEvent, None, None]:
        self._enter(generation)
        stats = generation.stats
        n_keep = 0
        sampler: TokenSampler | None = None
        try:
            drafter = self._pick_drafter(request.prompt)
            stats.draft = drafter.mode
            if self._asked and not self.target.max_nodes:
                stats.notices.append("drafting is off: this model cannot take drafts back")
            make_sampler = request.make_sampler
            sampler = make_sampler() if make_sampler else self.target.sampler(request.sampling)
            stats.seed = sampler.seed
            loop = DecodeLoop(self.target, drafter, request, sampler, stats)
            n_keep = len(request.prompt)
            for event in loop.events():
                n_keep += 1
                yield event
            generation.finish_reason = loop.finish_reason
        except DecodeError as error:
            if error.code != ABORTED or not self.target.is_stopped:
                raise
            generation.finish_reason = "cancelled"
        finally:
            # The text keeps what was emitted, whoever stopped where, and as plain decoding leaves
            # it: the last token has not been read unless it led to the end. The next prompt is
            # then read from the same place on, in the same batches, whatever was drafted here.
            if n_keep > len(request.prompt) and generation.finish_reason != "stop":
                n_keep -= 1
            self.target.rewind(min(n_keep, len(self.target.tokens)))
            if sampler is not None:
                sampler.close()
            self._leave()

    def _pick_drafter(self, prompt: list[TokenId]) -> GuardedDrafter:
        # Whoever put a drafter in place by hand means that one.
        if self.drafter is self._drafters.latest:
            self.drafter = self._drafters.pick(prompt)
        return self.drafter

    def _enter(self, generation: Generation) -> None:
        me = threading.get_ident()
        if self._owner == me:
            raise BusyError(
                "this thread has an unfinished generation on the same model; finish or close it"
            )
        self._lock.acquire()
        with self._state:
            self._owner = me
            self._running = weakref.ref(generation)
            self.target.resume()
            if generation._is_cancelled:
                self.target.stop()

    def _leave(self) -> None:
        with self._state:
            self._running = None
            self._owner = None
            self.target.resume()
        self._lock.release()
