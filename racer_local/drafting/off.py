"""Plain decoding as a drafter: it never proposes anything. Layer: pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import DraftTree, TokenId

__all__ = ["OffDrafter"]


class OffDrafter:
    """Proposes the root alone."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        """Start without a text."""
        self._last: TokenId | None = None

    @property
    def row_width(self) -> int:
        """Want no rows."""
        return 0

    def begin(self) -> None:
        """Forget the text."""
        self._last = None

    def feed(self, tokens: Sequence[TokenId]) -> None:
        """Remember the last token, the root of the next tree."""
        if len(tokens):
            self._last = int(tokens[-1])

    def wanted_rows(self, tokens: Sequence[TokenId]) -> NDArray[np.int32]:
        """Want no rows."""
        return np.zeros(0, dtype=np.int32)

    def learn(self, rows: Rows) -> None:
        """Learn nothing."""

    def draft(self, budget: int) -> DraftTree:
        """Return the root alone.

        Raises:
            ValueError: if the text is empty.
        """
        if self._last is None:
            raise ValueError("nothing to draft from: the text is empty")
        return DraftTree(self._last)

    def accept(self, outcome: StepOutcome) -> None:
        """Remember the next token."""
        self._last = outcome.next_token

    def size_bytes(self) -> int:
        """Hold next to nothing."""
        return 0
