"""A drafter that cannot spoil an answer: what it proposes is checked, and its failures end there.

Also keeps account of the text the drafter was told, so that its knowledge can be kept while a
conversation goes on and is dropped when the text is another. Layer: pure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from racer_local.config import DraftMemory
from racer_local.speculation.drafter import (
    ContextAware,
    Drafter,
    RowChooser,
    Rows,
    StepObserver,
    StepOutcome,
)
from racer_local.speculation.stats import Stats
from racer_local.speculation.topk import top_k
from racer_local.speculation.tree import ROOT, DraftTree, NodeId, TokenId

__all__ = ["GuardedDrafter"]

logger = logging.getLogger(__name__)

_NO_ROWS = np.empty(0, np.int32)


class GuardedDrafter:
    """Wraps a drafter for the engine; times it, and survives its faults.

    Attributes:
        mode: its name, for statistics.
        budget: most draft nodes in one step; 0 turns drafting off altogether.
    """

    def __init__(
        self, drafter: Drafter, mode: str, budget: int, memory: DraftMemory = "conversation"
    ) -> None:
        """Take over a drafter; it starts with no text."""
        self._drafter = drafter
        self._observer = drafter if isinstance(drafter, StepObserver) else None
        self._chooser = drafter if isinstance(drafter, RowChooser) else None
        self.mode = mode if budget else "off"
        self.budget = budget
        self._is_on = budget > 0
        self._memory = memory
        self._known: list[TokenId] = []
        # Tokens of other texts that the drafter knows before this one.
        self._n_others = 0
        self._stats = Stats()
        # Seconds of drafting and learning since the last step that was observed.
        self._overhead_s = 0.0
        drafter.begin()

    @property
    def row_width(self) -> int:
        """How many of the likeliest tokens it wants of each row; 0 while it is off."""
        return self._drafter.row_width if self._is_on else 0

    @property
    def n_known(self) -> int:
        """Tokens of the text that it knows."""
        return len(self._known)

    def n_known_of(self, prompt: Sequence[TokenId]) -> int:
        """Tokens of its text, if ``prompt`` continues it; else 0."""
        known = self._known
        return len(known) if list(prompt[: len(known)]) == known else 0

    def forget(self) -> None:
        """Drop all that was learned."""
        self._known.clear()
        self._n_others = 0
        self._drafter.begin()

    def start(self, prompt: list[TokenId], stats: Stats) -> None:
        """Begin a request: tell the drafter what the prompt adds to the text it knows.

        A prompt that continues that text keeps what was learned; any other one starts afresh, or
        is put behind it where memory is ``server``. With memory ``off`` all start afresh.
        """
        self._stats = stats
        self._overhead_s = 0.0
        self._is_on = self.budget > 0
        if not self._is_on:
            return
        known = self._known
        with self._survive():
            if self._memory != "off" and self.n_known_of(prompt):
                news = prompt[len(known) :]
            elif self._memory == "server" and known:
                self._n_others += len(known)
                known.clear()
                news = prompt
            else:
                self.forget()
                news = prompt
            known.extend(news)
            self._drafter.feed(news)
            if isinstance(self._drafter, ContextAware):
                self._drafter.set_context(len(prompt))

    def wanted_rows(self, tokens: Sequence[TokenId]) -> NDArray[np.int32]:
        """Say which rows of a prompt are worth reading; ascending places in ``tokens``."""
        wanted = _NO_ROWS
        if self.row_width:
            with self._survive():
                wanted = self._drafter.wanted_rows(tokens)
        return wanted

    def learn(self, places: NDArray[np.int32], logits: NDArray[np.float32]) -> None:
        """Learn from prompt rows at these places of the text; logits [n_places, n_vocab]."""
        if not self.row_width or not len(places):
            return
        with self._survive():
            shifted = places + np.int32(self._n_others)
            self._drafter.learn(Rows(shifted, *self._top_k(logits)))

    def draft(self, root: TokenId, budget: int, n_vocab: int, max_leaves: int) -> DraftTree:
        """Draft what follows; a root alone where drafting is off, does not pay, or failed."""
        if not self._is_on or budget <= 0:
            return DraftTree(root)
        started = perf_counter()
        tree = DraftTree(root)
        with self._survive():
            drafted = self._drafter.draft(budget)
            if drafted.tokens[ROOT] != root:
                raise ValueError("the draft tree does not grow from the last token")
            drafted.check(n_vocab)
            tree = drafted.limit_nodes(budget).limit_leaves(max_leaves)
        self._overhead_s += (seconds := perf_counter() - started)
        self._stats.draft_s += seconds
        return tree

    def observe_step(self, n_tokens: int, n_context: int, seconds: float) -> None:
        """Tell a cost-aware drafter what a decode step took; call it before ``accept``."""
        if self._is_on and self._observer is not None:
            self._observer.observe_step(n_tokens, n_context, seconds, self._overhead_s)
        self._overhead_s = 0.0

    def accept(
        self,
        tree: DraftTree,
        path: Sequence[NodeId],
        next_token: TokenId,
        nodes: Sequence[NodeId],
        logits: NDArray[np.float32],
    ) -> StepOutcome | None:
        """Teach the drafter what came of a tree; ``logits`` [n_nodes, n_vocab] are of ``nodes``.

        Returns:
            What it was told; None while it is off.
        """
        if not self._is_on:
            return None
        started = perf_counter()
        rows: Rows | None = None
        if self.row_width:
            rows = self._read_rows(path, nodes, logits)
        outcome = StepOutcome(tree, path, next_token, rows)
        self._known.extend(tree.tokens[node] for node in path[1:])
        self._known.append(next_token)
        with self._survive():
            self._drafter.accept(outcome)
        self._overhead_s += (seconds := perf_counter() - started)
        self._stats.learn_s += seconds
        return outcome

    def _read_rows(
        self, path: Sequence[NodeId], nodes: Sequence[NodeId], logits: NDArray[np.float32]
    ) -> Rows | None:
        if self._chooser is None:
            return Rows(np.asarray(nodes, np.int32), *self._top_k(logits))
        with self._survive():
            useful = self._chooser.useful_nodes(path)
            places = [nodes.index(node) for node in useful]
            return Rows(np.asarray(useful, np.int32), *self._top_k(logits, places))
        return None

    def _top_k(
        self, logits: NDArray[np.float32], places: Sequence[int] | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        min_prob = 0.0 if self._chooser is None else self._chooser.min_prob
        return top_k(logits, self.row_width, places, min_prob)

    @contextmanager
    def _survive(self) -> Iterator[None]:
        """Turn drafting off for the rest of the request if the drafter fails."""
        try:
            yield
        except Exception:
            # A faulty drafter may cost speed, never the answer.
            logger.exception("the drafter failed; plain decoding for the rest of this generation")
            self._stats.notices.append("drafting was turned off: the drafter failed")
            self._is_on = False
            # What it knows may be half-written: the next generation starts it afresh.
            self._known.clear()
