"""A drafter that cannot spoil an answer: what it proposes is checked, and its failures end there.

It also keeps account of the text that the drafter was given. Where a new prompt parts from that
text, the drafter goes back to what they have in common, and keeps what it knows of that.
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
    Heir,
    RowChooser,
    Rows,
    StepObserver,
    StepOutcome,
)
from racer_local.speculation.prefix import common_prefix
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

    def forget(self) -> None:
        """Drop all that was learned."""
        self._known = []
        self._n_others = 0
        self._drafter.begin()

    def begin_from(self, other: GuardedDrafter, prompt: list[TokenId]) -> None:
        """Begin with what ``prompt`` has in common with the text of another drafter.

        What that one knows of it is known here as well; it stays as it is itself.
        """
        if self.budget:
            with self._survive():
                self._begin_from(other, common_prefix(other._known, prompt))

    def _begin_from(self, other: GuardedDrafter, n_tokens: int) -> None:
        text = other._known[:n_tokens]
        if isinstance(self._drafter, Heir):
            self._drafter.begin_from(other._drafter, text)
        else:
            self._drafter.begin()
            self._drafter.feed(text)
        self._known = text
        self._n_others = 0

    def start(self, prompt: list[TokenId], stats: Stats) -> None:
        """Begin a request: give the drafter what the prompt adds to the text it knows.

        Where the prompt parts from that text, the drafter goes back to what they have in common;
        with memory ``server`` the prompt is put behind the text instead. With memory ``off`` the
        drafter starts afresh.
        """
        self._stats = stats
        self._overhead_s = 0.0
        self._is_on = self.budget > 0
        if not self._is_on:
            return
        with self._survive():
            n_same = 0 if self._memory == "off" else common_prefix(self._known, prompt)
            if n_same < len(self._known) and self._memory == "server":
                self._n_others += len(self._known)
                self._known = []
                n_same = 0
            elif n_same == 0:
                self.forget()
            elif n_same < len(self._known):
                self._begin_from(self, n_same)
            news = prompt[n_same:]
            self._known += news
            self._drafter.feed(news)
            if isinstance(self._drafter, ContextAware):
                self._drafter.set_context(len(prompt))

    def wanted_rows(self, tokens: Sequence[TokenId]) -> NDArray[np.int32]:
        """Say which rows of a prompt are worth reading; ascending positions in ``tokens``."""
        wanted = _NO_ROWS
        if self.row_width:
            with self._survive():
                wanted = self._drafter.wanted_rows(tokens)
        return wanted

    def learn(self, positions: NDArray[np.int32], logits: NDArray[np.float32]) -> None:
        """Learn from prompt rows at these positions of the text; logits [n, n_vocab]."""
        if not self.row_width or not len(positions):
            return
        with self._survive():
            shifted = positions + np.int32(self._n_others)
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
            What the drafter was shown; None while it is off.
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
            rows = [nodes.index(node) for node in useful]
            return Rows(np.asarray(useful, np.int32), *self._top_k(logits, rows))
        return None

    def _top_k(
        self, logits: NDArray[np.float32], rows: Sequence[int] | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        min_prob = 0.0 if self._chooser is None else self._chooser.min_prob
        return top_k(logits, self.row_width, rows, min_prob)

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
            self._known = []
