"""Last-logit: the ablation of Copy-Logit in which every node has the same children. Layer: pure.

Every node of the tree is expanded from one row only, that of the last accepted token, instead of
from the row of the node's own token. It shows what keying rows by token is worth.
Source: ablation in RACER, arXiv 2604.14885.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from racer_local.config import DraftConfig
from racer_local.drafting.racer.copy_logit import Row
from racer_local.drafting.racer.drafter import grow_logits
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import DraftTree, TokenId

__all__ = ["LastLogitDrafter"]


class LastLogitDrafter:
    """Proposes the likeliest tokens of the last step again, at every depth."""

    __slots__ = ("_breadth", "_last", "_n_fed", "_row")

    def __init__(self, config: DraftConfig) -> None:
        """Start without a text."""
        self._breadth = config.breadth
        self.begin()

    @property
    def row_width(self) -> int:
        """Want as many tokens of a row as the root has children."""
        return self._breadth

    def begin(self) -> None:
        """Forget the text."""
        self._row: Row | None = None
        self._last: TokenId | None = None

    def feed(self, tokens: Sequence[TokenId]) -> None:
        """Remember the last token, the root of the next tree."""
        if len(tokens):
            self._last = int(tokens[-1])

    def wanted_rows(self, tokens: Sequence[TokenId]) -> NDArray[np.int32]:
        """Want the row of the last token."""
        return np.arange(len(tokens), dtype=np.int32)[-1:]

    def learn(self, rows: Rows) -> None:
        """Take the row of the latest place."""
        if len(rows.index):
            self._take(rows, int(np.argmax(rows.index)))

    def draft(self, budget: int) -> DraftTree:
        """Guess a tree with the same children everywhere.

        Raises:
            ValueError: if the text is empty.
        """
        if self._last is None:
            raise ValueError("nothing to draft from: the text is empty")
        tree = DraftTree(self._last)
        grow_logits(tree, lambda before, token: self._row, -1, budget, self._breadth)
        return tree

    def accept(self, outcome: StepOutcome) -> None:
        """Take the row of the last accepted node and the next token."""
        self._last = outcome.next_token
        if outcome.rows is not None:
            for place in np.flatnonzero(outcome.rows.index == outcome.path[-1]).tolist():
                self._take(outcome.rows, place)

    def _take(self, rows: Rows, place: int) -> None:
        self._row = rows.ids[place].tolist(), rows.probs[place].tolist()

    def size_bytes(self) -> int:
        """Hold one row."""
        return 128 * self._breadth
