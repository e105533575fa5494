"""The life of one decode step: draft > decode > verify > commit > learn > emit.

A step takes a list of generations. What belongs to one of them (sampler, drafter, limits,
counters) is in its ``Decoding``; its text, positions and sequence ids are its slot's. A target
has one slot as yet, so there is one generation in the list; only ``_decode`` knows that.
The names of the parts are those of the documentation and of the statistics.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from racer_local.config import GenerationConfig, SamplingConfig
from racer_local.drafting.guarded_drafter import GuardedDrafter
from racer_local.errors import DecodeError
from racer_local.speculation.acceptance import verify
from racer_local.speculation.drafter import StepOutcome
from racer_local.speculation.stats import Stats
from racer_local.speculation.target import Slot, Target, TokenSampler, TreePruner, TreeRows
from racer_local.speculation.tree import ROOT, DraftTree, NodeId, Source, TokenId

__all__ = [
    "ABORTED",
    "Decoding",
    "FinishReason",
    "Request",
    "TokenEvent",
    "decode_step",
    "read_prompt",
]

logger = logging.getLogger(__name__)

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]

# Return codes of llama_decode.
ABORTED = 2
_NO_SLOT = 1


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
class Request:
    """What was asked for; see ``Engine.generate``."""

    prompt: list[TokenId]
    sampling: SamplingConfig
    limits: GenerationConfig
    make_sampler: Callable[[], TokenSampler] | None = None
    on_prefill: Callable[[int, int], None] | None = None
    on_prompt_rows: Callable[[NDArray[np.int32], NDArray[np.float32]], None] | None = None
    on_step: Callable[[StepOutcome], None] | None = None


class Decoding:
    """One generation between its steps, and within one.

    Attributes:
        slot: the text that it makes longer.
        request: what was asked for.
        drafter: guesses what comes.
        sampler: chooses what comes.
        stats: counters.
        events: tokens that were generated and not handed out yet, oldest first.
        finish_reason: why no further step comes; None while one does.
        tree: of the latest step; its root is the token that was sampled last before it.
        rows: where its nodes are among the rows of the target's logits.
    """

    def __init__(
        self,
        target: Target,
        slot: Slot,
        drafter: GuardedDrafter,
        request: Request,
        sampler: TokenSampler,
        stats: Stats,
    ) -> None:
        """Prepare; nothing is evaluated yet."""
        self.slot = slot
        self.request = request
        self.drafter = drafter
        self.sampler = sampler
        self.stats = stats
        self.events: deque[TokenEvent] = deque()
        self.finish_reason: FinishReason | None = None
        self.tree = DraftTree(request.prompt[-1])
        self.rows: TreeRows
        self._next_root = request.prompt[-1]
        self._target = target
        self._pruner = sampler if isinstance(sampler, TreePruner) else None
        self._n_left = target.n_ctx - len(request.prompt)
        if request.limits.max_tokens is not None:
            self._n_left = min(self._n_left, request.limits.max_tokens)

    def draft(self) -> None:
        """Guess what comes: a root alone where that does not pay."""
        # Limits come before drafting: a tree never needs to be cut to fit.
        n_free = self._target.n_ctx - len(self.slot.tokens) - 1
        budget = min(self.drafter.budget, self._n_left - 1, n_free)
        tree = self.drafter.draft(
            self._next_root, budget, self._target.n_vocab, self._target.max_leaves
        )
        if self._pruner is not None and tree.n_drafted:
            # A row costs more than finding out that it is not needed.
            started = perf_counter()
            tree = tree.without(self._pruner.forbidden(tree))
            self.stats.draft_s += perf_counter() - started
        self.tree = tree

    def verify(self) -> tuple[list[NodeId], TokenId]:
        """Find the path that the sampler agrees with, and the token after it."""
        sample, row_of = self.sampler.sample, self.rows.row_of
        return verify(self.tree, lambda node: sample(row_of[node]), self._is_end)

    def commit(self, path: list[NodeId]) -> None:
        """Keep the path in the cache, and count."""
        tree, stats = self.tree, self.stats
        started = perf_counter()
        self.slot.commit(path)
        stats.kv_s += perf_counter() - started
        stats.n_steps += 1
        stats.n_drafted += tree.n_drafted
        stats.n_accepted += len(path) - 1
        for source in tree.sources[1:]:
            stats.by_source[source].drafted += 1
        for node in path[1:]:
            stats.by_source[tree.sources[node]].accepted += 1

    def learn(
        self,
        path: list[NodeId],
        token: TokenId,
        nodes: Sequence[NodeId],
        logits: NDArray[np.float32],
    ) -> None:
        """Teach the drafter what came of the tree; logits [n_nodes, n_vocab] are of ``nodes``."""
        outcome = self.drafter.accept(self.tree, path, token, nodes, logits)
        if self.request.on_step is not None:
            self.request.on_step(outcome or StepOutcome(self.tree, path, token, None))

    def emit(self, path: list[NodeId], token: TokenId) -> None:
        """Append the new tokens to the events; the last one is the root of the next tree."""
        tree, step = self.tree, self.stats.n_steps
        for node in path[1:]:
            self.events.append(TokenEvent(tree.tokens[node], tree.sources[node], step))
        self._n_left -= len(path)
        if self._is_end(token):
            self.finish_reason = "stop"
            return
        self.events.append(TokenEvent(token, Source.TARGET, step))
        self._next_root = token
        if self._n_left == 0:
            self.finish_reason = "length"

    def _is_end(self, token: TokenId) -> bool:
        return not self.request.limits.ignore_eos and self._target.is_end(token)


def decode_step(target: Target, generations: Sequence[Decoding]) -> None:
    """Run one decode step for every generation; each goes on with its next root.

    Raises:
        DecodeError: from the target; with code 2 if it was stopped.
    """
    started = perf_counter()
    _check_stop(target)
    for generation in generations:
        generation.draft()
    _decode(target, generations)
    for generation in generations:
        path, token = generation.verify()
        generation.commit(path)
        generation.learn(path, token, generation.rows.nodes, target.logits())
        generation.emit(path, token)
    seconds = perf_counter() - started
    for generation in generations:
        generation.stats.decode_s += seconds


def _decode(target: Target, generations: Sequence[Decoding]) -> None:
    """Evaluate the trees; says what it took to those who plan by it."""
    [generation] = generations
    n_past = len(generation.slot.tokens)
    started = perf_counter()
    try:
        generation.rows = target.decode_tree(generation.tree)
    except DecodeError as error:
        n_drafted = generation.tree.n_drafted
        if error.code != _NO_SLOT or n_drafted == 0:
            raise
        logger.warning("no room in the KV cache for %d draft nodes", n_drafted)
        generation.tree = DraftTree(generation.tree.tokens[ROOT])
        generation.rows = target.decode_tree(generation.tree)
    seconds = perf_counter() - started
    generation.stats.target_s += seconds
    generation.drafter.observe_step(len(generation.tree), n_past, seconds)


def read_prompt(target: Target, generation: Decoding) -> None:
    """Read what the slot does not hold of the prompt; learn from it, and emit the first token.

    Raises:
        DecodeError: from the target; with code 2 if it was stopped.
    """
    request, drafter = generation.request, generation.drafter
    prompt, show_rows = request.prompt, request.on_prompt_rows
    n_reused = generation.stats.n_reused = len(generation.slot.tokens)
    drafter.start(prompt, generation.stats)
    n_chunk = target.n_batch
    if show_rows is None:
        wanted = drafter.wanted_rows(prompt[n_reused:-1]) + np.int32(n_reused)
        # The last row is always read: it gives the first token.
        wanted = np.append(wanted, np.int32(len(prompt) - 1))
    else:
        wanted = np.arange(len(prompt), dtype=np.int32)
        n_chunk = min(n_chunk, target.max_prompt_rows)
    for start in range(n_reused, len(prompt), n_chunk):
        end = min(start + n_chunk, len(prompt))
        _check_stop(target)
        positions = wanted[(wanted >= start) & (wanted < end)][-target.max_prompt_rows :]
        logits = target.prefill(prompt[start:end], positions - start)
        if request.on_prefill is not None:
            request.on_prefill(end, len(prompt))
        if show_rows is not None:
            show_rows(positions, logits)
        # The last row is the first decode step's, and is learned with the token it gives.
        n_learn = len(positions) - (end == len(prompt))
        drafter.learn(positions[:n_learn], logits[:n_learn])
    last_row = len(logits) - 1
    token = generation.sampler.sample(last_row)
    generation.learn([ROOT], token, [ROOT], logits[last_row:])
    generation.emit([ROOT], token)
    # Learning from the prompt is part of reading it.
    generation.stats.learn_s = 0.0


def _check_stop(target: Target) -> None:
    # A stop that came between two batches; devices that cannot abort end here as well.
    if target.is_stopped:
        raise DecodeError(ABORTED)
