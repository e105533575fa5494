"""The one decode loop: draft, decode, verify, commit, learn, emit.

The only module that knows both a drafter and a target. It deals in token ids; text is the
business of ``text``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from racer_local.backend.base import Target, TokenSampler
from racer_local.config import DraftConfig, GenerationConfig, SamplingConfig
from racer_local.drafting import make_drafter
from racer_local.drafting.base import Drafter, Rows, StepOutcome
from racer_local.errors import BusyError, ConfigError, ContextFullError, DecodeError
from racer_local.stats import Stats
from racer_local.topk import top_k
from racer_local.tree import ROOT, DraftTree, NodeId, Source, TokenId
from racer_local.verify import verify

__all__ = ["Engine", "FinishReason", "Generation", "TokenEvent"]

logger = logging.getLogger(__name__)

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]

_NO_SLOT = 1
_ABORTED = 2


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token.

    Attributes:
        token: its id.
        source: who proposed it; ``Source.TARGET`` if nobody did.
        step: the decode step it came from; 0 for the token that the prompt itself gave.
    """

    token: TokenId
    source: Source
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    prompt: list[TokenId]
    sampling: SamplingConfig
    limits: GenerationConfig
    on_prefill: Callable[[int, int], None] | None
    on_step: Callable[[StepOutcome], None] | None


class Generation(Iterator[TokenEvent]):
    """A running generation: iterate for tokens; close, or leave a ``with`` block, to end early.

    Attributes:
        stats: counters, true at every moment.
        finish_reason: None while it runs.
    """

    def __init__(self, engine: Engine, request: _Request) -> None:
        """Prepare; nothing runs before the first token is asked for."""
        self.stats = Stats(n_prompt=len(request.prompt))
        self.finish_reason: FinishReason | None = None
        self._events = engine._run(request, self)

    def __next__(self) -> TokenEvent:
        """Return the next token; runs a decode step where needed."""
        return next(self._events)

    def close(self) -> None:
        """End the generation; the engine is free for the next one."""
        self._events.close()

    def __enter__(self) -> Generation:
        """Return the generation itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


class Engine:
    """Joins one target and one drafter; serves one generation at a time.

    Calls from several threads wait for each other. What the KV cache and the drafter hold is
    kept from one generation to the next as far as the new prompt continues the old text.
    """

    def __init__(self, target: Target, draft: DraftConfig | None = None) -> None:
        """Take over a target; it is not closed by the engine."""
        self.target = target
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._state = threading.Lock()
        self._is_running = False
        # What the drafter was told of the text in the cache.
        self._known: list[TokenId] = []
        self.use(draft or DraftConfig())

    def use(self, draft: DraftConfig | Drafter, budget: int | None = None) -> None:
        """Draft differently from the next generation on; what was learned is dropped.

        Args:
            draft: settings, or a drafter of one's own.
            budget: most draft nodes in one step, for a drafter of one's own.

        Raises:
            ConfigError: the target was opened for smaller trees.
        """
        if isinstance(draft, DraftConfig):
            drafter, budget = make_drafter(draft), draft.budget
            self.mode: str = draft.mode
            if draft.mode == "off":
                budget = 0
        else:
            drafter, budget = draft, self.target.max_nodes if budget is None else budget
            self.mode = type(draft).__name__
        if self.target.max_nodes and budget > self.target.max_nodes:
            raise ConfigError(
                f"draft budget is {budget}, but the model was opened for trees of at most "
                f"{self.target.max_nodes} nodes"
            )
        self.drafter = drafter
        self.budget = min(budget, self.target.max_nodes)
        self._known = []
        drafter.begin()

    def generate(
        self,
        prompt: Sequence[TokenId],
        sampling: SamplingConfig | None = None,
        limits: GenerationConfig | None = None,
        *,
        on_prefill: Callable[[int, int], None] | None = None,
        on_step: Callable[[StepOutcome], None] | None = None,
    ) -> Generation:
        """Generate what follows ``prompt``.

        Args:
            prompt: token ids, at least one.
            sampling: how tokens are chosen.
            limits: when to end. Stop strings are the text layer's.
            on_prefill: is told (tokens read, tokens to read) while the prompt is read.
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
        request = _Request(
            prompt=tokens,
            sampling=sampling or SamplingConfig(),
            limits=limits or GenerationConfig(),
            on_prefill=on_prefill,
            on_step=on_step,
        )
        return Generation(self, request)

    def cancel(self) -> None:
        """End the running generation within one decode step; without one, do nothing.

        May be called from any thread. The generation finishes with reason ``cancelled``.
        """
        with self._state:
            if self._is_running:
                self.target.stop()

    def forget(self) -> None:
        """Drop the text in the cache and all that the drafter learned."""
        with self._lock:
            self.target.rewind(0)
            self._known = []
            self.drafter.begin()

    # --- the loop -------------------------------------------------------------------------

    def _run(self, request: _Request, generation: Generation) -> Generator[TokenEvent, None, None]:
        self._enter()
        stats = generation.stats
        n_keep = 0
        sampler: TokenSampler | None = None
        try:
            sampler = self.target.sampler(request.sampling)
            stats.seed = sampler.seed
            loop = _Loop(self, request, sampler, stats)
            n_keep = len(request.prompt)
            for event in loop.events():
                n_keep += 1
                yield event
            generation.finish_reason = loop.finish_reason
        except DecodeError as error:
            if error.code != _ABORTED or not self.target.is_stopped:
                raise
            generation.finish_reason = "cancelled"
        finally:
            # The text keeps what was emitted, whoever stopped where: the last token is not in
            # the cache, and tokens of a step that nobody asked for are taken back.
            if len(self.target.tokens) > n_keep:
                self.target.rewind(n_keep)
            if sampler is not None:
                sampler.close()
            self._leave()

    def _enter(self) -> None:
        me = threading.get_ident()
        if self._owner == me:
            raise BusyError(
                "this thread has an unfinished generation on the same model; finish or close it"
            )
        self._lock.acquire()
        with self._state:
            self._owner = me
            self._is_running = True
            self.target.resume()

    def _leave(self) -> None:
        with self._state:
            self._is_running = False
            self._owner = None
            self.target.resume()
        self._lock.release()


class _Loop:
    """The state of one generation."""

    def __init__(
        self, engine: Engine, request: _Request, sampler: TokenSampler, stats: Stats
    ) -> None:
        self._engine = engine
        self._target = engine.target
        self._drafter = engine.drafter
        self._row_width = engine.drafter.row_width if engine.budget else 0
        self._is_drafting = engine.budget > 0
        self._request = request
        self._sampler = sampler
        self._stats = stats
        self.finish_reason: FinishReason | None = None
        stats.draft = engine.mode if engine.budget else "off"
        if engine.mode != "off" and not engine.target.max_nodes:
            stats.notices.append("drafting is off: this model cannot take drafts back")
        room = self._target.n_ctx - len(request.prompt)
        asked = request.limits.max_tokens
        self._n_max = room if asked is None else min(asked, room)

    def events(self) -> Iterator[TokenEvent]:
        """Yield tokens until the answer ends; sets ``finish_reason``."""
        stats = self._stats
        started = perf_counter()
        token = self._prefill()
        stats.prefill_s = perf_counter() - started
        if self._is_end(token):
            self.finish_reason = "stop"
            return
        stats.n_generated = 1
        yield TokenEvent(token, Source.TARGET, 0)
        while stats.n_generated < self._n_max:
            started = perf_counter()
            tree, path, token = self._step(token)
            stats.decode_s += perf_counter() - started
            for node in path[1:]:
                stats.n_generated += 1
                yield TokenEvent(tree.tokens[node], tree.sources[node], stats.n_steps)
            if self._is_end(token):
                self.finish_reason = "stop"
                return
            stats.n_generated += 1
            yield TokenEvent(token, Source.TARGET, stats.n_steps)
        self.finish_reason = "length"

    def _is_end(self, token: TokenId) -> bool:
        return not self._request.limits.ignore_eos and self._target.is_end(token)

    def _prefill(self) -> TokenId:
        """Read the prompt, teach it to the drafter, and return the first token."""
        target, prompt = self._target, self._request.prompt
        n_reused = self._stats.n_reused = target.reuse(prompt)
        self._tell_prompt(prompt)
        wanted = self._wanted_rows(prompt, n_reused)
        for start in range(n_reused, len(prompt), target.n_batch):
            end = min(start + target.n_batch, len(prompt))
            self._check_stop()
            places = wanted[(wanted >= start) & (wanted < end)][-target.max_prompt_rows :]
            logits = target.prefill(prompt[start:end], places - start)
            if self._request.on_prefill is not None:
                self._request.on_prefill(end, len(prompt))
            is_last = end == len(prompt)
            # The last row is the first decode step's: it is learned with the token it gives.
            n_learn = len(places) - is_last
            if n_learn > 0 and self._row_width:
                ids, probs = top_k(logits[:n_learn], self._row_width)
                self._teach(Rows(places[:n_learn], ids, probs))
        tree = DraftTree(prompt[-1])
        last_row = len(logits) - 1
        token = self._sampler.sample(last_row)
        self._accept(tree, [ROOT], token, [ROOT], slice(last_row, None))
        return token

    def _wanted_rows(self, prompt: list[TokenId], n_reused: int) -> NDArray[np.int32]:
        last = np.array([len(prompt) - 1], np.int32)
        if not self._row_width:
            return last
        wanted = self._drafter.wanted_rows(prompt[n_reused:-1])
        return np.concatenate([np.asarray(wanted, np.int32) + n_reused, last])

    def _tell_prompt(self, prompt: list[TokenId]) -> None:
        if not self._is_drafting:
            return
        known = self._engine._known
        if known and prompt[: len(known)] == known:
            news = prompt[len(known) :]
        else:
            self._drafter.begin()
            known.clear()
            news = prompt
        known.extend(news)
        self._drafter.feed(news)

    def _teach(self, rows: Rows) -> None:
        started = perf_counter()
        self._drafter.learn(rows)
        self._stats.learn_s += perf_counter() - started

    def _check_stop(self) -> None:
        # A stop that came between two batches; devices that cannot abort end here as well.
        if self._target.is_stopped:
            raise DecodeError(_ABORTED)

    def _step(self, root: TokenId) -> tuple[DraftTree, list[NodeId], TokenId]:
        """Run one decode step on the token that was sampled last."""
        target, stats = self._target, self._stats
        self._check_stop()
        t0 = perf_counter()
        tree = self._draft(root)
        t1 = perf_counter()
        try:
            nodes = target.decode_tree(tree)
        except DecodeError as error:
            if error.code != _NO_SLOT or tree.n_drafted == 0:
                raise
            logger.warning("no room in the KV cache for %d draft nodes", tree.n_drafted)
            tree = DraftTree(root)
            nodes = target.decode_tree(tree)
        t2 = perf_counter()
        row_of = {node: row for row, node in enumerate(nodes)}
        path, token = verify(tree, lambda node: self._sampler.sample(row_of[node]), self._is_end)
        t3 = perf_counter()
        target.commit(path)
        t4 = perf_counter()
        stats.n_steps += 1
        self._count(tree, path)
        self._accept(tree, path, token, nodes, slice(None))
        stats.draft_s += t1 - t0
        stats.target_s += t2 - t1
        stats.kv_s += t4 - t3
        return tree, path, token

    def _draft(self, root: TokenId) -> DraftTree:
        stats = self._stats
        n_left = self._n_max - stats.n_generated
        room = self._target.n_ctx - len(self._target.tokens) - 1
        budget = min(self._engine.budget, n_left - 1, room)
        if not self._is_drafting or budget <= 0:
            return DraftTree(root)
        try:
            tree = self._drafter.draft(budget)
            if tree.tokens[ROOT] != root:
                raise ValueError("the draft tree does not grow from the last token")
            tree.check(self._target.n_vocab)
        except Exception:  # noqa: BLE001 - a faulty drafter may cost speed, never the answer
            self._stop_drafting("the drafter failed")
            return DraftTree(root)
        if tree.n_drafted > budget:
            tree = tree.limit_nodes(budget)
        return tree.limit_leaves(self._target.max_leaves)

    def _count(self, tree: DraftTree, path: list[NodeId]) -> None:
        stats = self._stats
        stats.n_drafted += tree.n_drafted
        stats.n_accepted += len(path) - 1
        for source in tree.sources[1:]:
            stats.by_source[source].drafted += 1
        for node in path[1:]:
            stats.by_source[tree.sources[node]].accepted += 1

    def _accept(
        self,
        tree: DraftTree,
        path: list[NodeId],
        token: TokenId,
        nodes: Sequence[NodeId],
        rows: slice,
    ) -> None:
        """Teach the drafter what came of a tree; ``rows`` are those of ``nodes``."""
        if not self._is_drafting:
            return
        started = perf_counter()
        top: Rows | None = None
        if self._row_width:
            ids, probs = top_k(self._target.logits()[rows], self._row_width)
            top = Rows(np.asarray(nodes, np.int32), ids, probs)
        outcome = StepOutcome(tree, path, token, top)
        self._engine._known.extend(tree.tokens[node] for node in path[1:])
        self._engine._known.append(token)
        try:
            self._drafter.accept(outcome)
        except Exception:  # noqa: BLE001 - a faulty drafter may cost speed, never the answer
            self._stop_drafting("the drafter failed")
        self._stats.learn_s += perf_counter() - started
        if self._request.on_step is not None:
            self._request.on_step(outcome)

    def _stop_drafting(self, reason: str) -> None:
        logger.exception("%s; plain decoding for the rest of this generation", reason)
        self._stats.notices.append(f"drafting was turned off: {reason}")
        self._is_drafting = False
        # What it knows may be half-written: the next generation starts it afresh.
        self._engine._known.clear()
