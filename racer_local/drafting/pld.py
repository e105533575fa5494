"""Prompt lookup: go on as the text did the last time its newest n-gram occurred.

The simplest drafter there is, kept as a base line: one chain, no counts, nothing asked of the
model. Layer: pure. Source: A. Saxena, "Prompt Lookup Decoding", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from racer_local.config import DraftConfig
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import ROOT, DraftTree, Source, TokenId

__all__ = ["PromptLookupDrafter"]

# The n-gram that is looked up first has this many tokens, as in the original.
_LONGEST = 3
# Tokens searched: one comparison over so many costs less than keeping an index of them.
_MAX_TEXT = 32_768


class PromptLookupDrafter:
    """Proposes the tokens after the most recent earlier occurrence of the last n-gram."""

    __slots__ = ("_length", "_longest", "_shortest", "_text")

    def __init__(self, config: DraftConfig) -> None:
        """Start without a text; ``config.min_match`` is the shortest n-gram looked up."""
        self._shortest = config.min_match
        self._longest = max(_LONGEST, config.min_match)
        self.begin()

    @property
    def row_width(self) -> int:
        """Want no rows."""
        return 0

    def begin(self) -> None:
        """Forget the text."""
        self._text = np.zeros(1024, dtype=np.int32)
        self._length = 0

    def feed(self, tokens: Sequence[TokenId]) -> None:
        """Append tokens; only the last 32,768 are kept."""
        new = np.asarray(tokens, dtype=np.int32)[-_MAX_TEXT:]
        if self._length + len(new) > len(self._text):
            # Twice the limit: the oldest half is dropped once per 32,768 tokens.
            kept = self._text[max(0, self._length - _MAX_TEXT) : self._length]
            size = min(max(2 * (len(kept) + len(new)), 1024), 2 * _MAX_TEXT)
            self._text = np.zeros(size, dtype=np.int32)
            self._length = len(kept)
            self._text[: self._length] = kept
        self._text[self._length : self._length + len(new)] = new
        self._length += len(new)

    def wanted_rows(self, tokens: Sequence[TokenId]) -> NDArray[np.int32]:
        """Want no rows."""
        return np.zeros(0, dtype=np.int32)

    def learn(self, rows: Rows) -> None:
        """Learn nothing from rows."""

    def draft(self, budget: int) -> DraftTree:
        """Guess one chain of at most ``budget`` tokens.

        Raises:
            ValueError: if the text is empty.
        """
        if self._length == 0:
            raise ValueError("nothing to draft from: the text is empty")
        text = self._text[max(0, self._length - _MAX_TEXT) : self._length]
        tree = DraftTree(int(text[-1]))
        if budget <= 0:
            return tree
        for n in range(self._longest, self._shortest - 1, -1):
            end = _last_occurrence(text, n)
            if end:
                node = ROOT
                for token in text[end : end + budget].tolist():
                    node = tree.add(node, token, Source.RETRIEVAL)
                break
        return tree

    def accept(self, outcome: StepOutcome) -> None:
        """Append the accepted tokens and the next one."""
        tokens = [outcome.tree.tokens[node] for node in outcome.path[1:]]
        self.feed([*tokens, outcome.next_token])

    def size_bytes(self) -> int:
        """Estimate the memory held."""
        return self._text.nbytes


def _last_occurrence(text: NDArray[np.int32], n: int) -> int:
    """Find where the last earlier occurrence of the final n tokens ends; 0 if there is none."""
    n_starts = len(text) - n
    if n_starts <= 0:
        return 0
    ends_here = np.ones(n_starts, dtype=np.bool_)
    for i in range(n):
        ends_here &= text[i : i + n_starts] == text[n_starts + i]
    starts = np.flatnonzero(ends_here)
    return int(starts[-1]) + n if len(starts) else 0
