"""One generation, step by step: draft, decode, verify, commit, learn, emit.

The order and the names of the parts are those of the documentation and of the statistics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
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
from racer_local.speculation.target import Target, TokenSampler, TreePruner
from racer_local.speculation.tree import ROOT, DraftTree, NodeId, Source, TokenId

__all__ = ["ABORTED", "DecodeLoop", "FinishReason", "Request", "TokenEvent"]

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


class DecodeLoop:
    """The state of one generation.

    Attributes:
        finish_reason: None until it has ended by itself.
    """

    def __init__(
        self,
        target: Target,
        drafter: GuardedDrafter,
        request: Request,
        sampler: TokenSampler,
        stats: Stats,
    ) -> None:
        """Prepare; nothing is evaluated yet."""
        self._target = target
        self._drafter = drafter
        self._request = request
        self._sampler = sampler
        self._pruner = sampler if isinstance(sampler, TreePruner) else None
        self._stats = stats
        self.finish_reason: FinishReason | None = None
        room = target.n_ctx - len(request.prompt)
        asked = request.limits.max_tokens
        self._n_max = room if asked is None else min(asked, room)

    def events(self) -> Iterator[TokenEvent]:
        """Yield tokens until the answer ends; sets ``finish_reason``.

        Raises:
            DecodeError: from the target; with code 2 if it was stopped.
        """
        stats = self._stats
        started = perf_counter()
        token = self._prefill()
        stats.prefill_s = perf_counter() - started
        # Learning from the prompt is part of reading it.
        stats.learn_s = 0.0
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

    def _check_stop(self) -> None:
        # A stop that came between two batches; devices that cannot abort end here as well.
        if self._target.is_stopped:
            raise DecodeError(ABORTED)

    def _prefill(self) -> TokenId:
        """Read the prompt, teach it to the drafter, and return the first token."""
        target, prompt = self._target, self._request.prompt
        show_rows = self._request.on_prompt_rows
        if show_rows is None:
            n_reused = target.reuse(prompt)
        else:
            target.rewind(n_reused := 0)
        self._stats.n_reused = n_reused
        self._drafter.start(prompt, self._stats)
        wanted = self._drafter.wanted_rows(prompt[n_reused:-1]) + np.int32(n_reused)
        # The last row is always read: it gives the first token.
        wanted = np.append(wanted, np.int32(len(prompt) - 1))
        n_chunk = target.n_batch
        if show_rows is not None:
            wanted = np.arange(len(prompt), dtype=np.int32)
            n_chunk = min(n_chunk, target.max_prompt_rows)
        for start in range(n_reused, len(prompt), n_chunk):
            end = min(start + n_chunk, len(prompt))
            self._check_stop()
            places = wanted[(wanted >= start) & (wanted < end)][-target.max_prompt_rows :]
            logits = target.prefill(prompt[start:end], places - start)
            if self._request.on_prefill is not None:
                self._request.on_prefill(end, len(prompt))
            if show_rows is not None:
                show_rows(places, logits)
            # The last row is the first decode step's, and is learned with the token it gives.
            n_learn = len(places) - (end == len(prompt))
            self._drafter.learn(places[:n_learn], logits[:n_learn])
        last_row = len(logits) - 1
        token = self._sampler.sample(last_row)
        self._accept(DraftTree(prompt[-1]), [ROOT], token, [ROOT], slice(last_row, None))
        return token

    def _step(self, root: TokenId) -> tuple[DraftTree, list[NodeId], TokenId]:
        """Run one decode step on the token that was sampled last."""
        target, stats = self._target, self._stats
        self._check_stop()
        tree = self._draft(root)
        n_past = len(target.tokens)
        started = perf_counter()
        tree, nodes = self._decode(tree)
        seconds = perf_counter() - started
        stats.target_s += seconds
        self._drafter.observe_step(len(tree), n_past, seconds)
        row_of = {node: row for row, node in enumerate(nodes)}
        path, token = verify(tree, lambda node: self._sampler.sample(row_of[node]), self._is_end)
        started = perf_counter()
        target.commit(path)
        stats.kv_s += perf_counter() - started
        stats.n_steps += 1
        self._count(tree, path)
        self._accept(tree, path, token, nodes, slice(None))
        return tree, path, token

    def _draft(self, root: TokenId) -> DraftTree:
        # Limits come before drafting: a tree never needs to be cut to fit.
        n_left = self._n_max - self._stats.n_generated
        n_free = self._target.n_ctx - len(self._target.tokens) - 1
        budget = min(self._drafter.budget, n_left - 1, n_free)
        tree = self._drafter.draft(root, budget, self._target.n_vocab, self._target.max_leaves)
        if self._pruner is None or not tree.n_drafted:
            return tree
        # A row costs more than finding out that it is not needed.
        started = perf_counter()
        tree = tree.without(self._pruner.forbidden(tree))
        self._stats.draft_s += perf_counter() - started
        return tree

    def _decode(self, tree: DraftTree) -> tuple[DraftTree, Sequence[NodeId]]:
        try:
            return tree, self._target.decode_tree(tree)
        except DecodeError as error:
            if error.code != _NO_SLOT or tree.n_drafted == 0:
                raise
            logger.warning("no room in the KV cache for %d draft nodes", tree.n_drafted)
            root = DraftTree(tree.tokens[ROOT])
            return root, self._target.decode_tree(root)

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
        logits = self._target.logits()[rows]
        outcome = self._drafter.accept(tree, path, token, nodes, logits)
        if self._request.on_step is not None:
            self._request.on_step(outcome or StepOutcome(tree, path, token, None))
