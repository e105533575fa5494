"""Copy-Logit rows of the current text, three per place. Layer: pure.

The row of the last two tokens, and the two latest rows of the last token: what the model ranked
high the time before last is often right where the last time's row is not. Of the ideas for more
candidates (continuations of one token, the row of the place before as a source, rows keyed by
three tokens) this was the only one that helped in replay, from 1.339 to 1.350 on a steep curve
and from 2.57 to 2.58 on a flat one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from racer_local.drafting.copy_logit import Row, RowTable, pair_key
from racer_local.tree import TokenId

__all__ = ["RowStore"]

# Rows kept per table; the least recently stored is dropped. Together 6 MB with 8 tokens a row.
_MAX_TWO_TOKEN_ROWS = 16_384
_MAX_ONE_TOKEN_ROWS = 8_192


class RowStore:
    """Rows by the last two tokens and by the last one, of the latter also the one before."""

    __slots__ = ("_old", "_one", "_two")

    def __init__(self, width: int) -> None:
        """Make an empty store of rows with ``width`` tokens."""
        self._two = RowTable(_MAX_TWO_TOKEN_ROWS, width)
        self._one = RowTable(_MAX_ONE_TOKEN_ROWS, width)
        self._old = RowTable(_MAX_ONE_TOKEN_ROWS, width)

    @property
    def capacity(self) -> int:
        """Most rows of two tokens that are kept."""
        return _MAX_TWO_TOKEN_ROWS

    def clear(self) -> None:
        """Forget all rows."""
        for table in (self._two, self._one, self._old):
            table.clear()

    def learn(
        self,
        pairs: Sequence[tuple[TokenId, TokenId]],
        ids: NDArray[np.int32],
        probs: NDArray[np.float32],
    ) -> None:
        """Store rows.

        Args:
            pairs: per row the token before (-1 if there is none) and the token it belongs to.
            ids: int32 [n, k], likeliest first.
            probs: float32 [n, k].
        """
        if not pairs:
            return
        self._two.store([pair_key(before, token) for before, token in pairs], ids, probs)
        # Of a token that occurs more than once, the last two rows count.
        latest: dict[TokenId, int] = {}
        previous: dict[TokenId, int] = {}
        for i, (_, token) in enumerate(pairs):
            if token in latest:
                previous[token] = latest[token]
            latest[token] = i
        self._age([token for token in latest if token not in previous])
        if previous:
            places = list(previous.values())
            self._old.store(list(previous), ids[places], probs[places])
        places = list(latest.values())
        self._one.store(list(latest), ids[places], probs[places])

    def _age(self, tokens: Sequence[TokenId]) -> None:
        """Copy the latest rows of these tokens to the older ones."""
        known = [(token, row) for token in tokens if (row := self._one.get(token)) is not None]
        if known:
            ids = np.array([row[0] for _, row in known], dtype=np.int32)
            probs = np.array([row[1] for _, row in known], dtype=np.float32)
            self._old.store([token for token, _ in known], ids, probs)

    def two(self, before: TokenId, token: TokenId) -> Row | None:
        """Look up the row of ``token`` after ``before``."""
        return self._two.get(pair_key(before, token))

    def one(self, token: TokenId) -> Row | None:
        """Look up the latest row of ``token``."""
        return self._one.get(token)

    def old(self, token: TokenId) -> Row | None:
        """Look up the row of ``token`` before the latest one."""
        return self._old.get(token)

    def size_bytes(self) -> int:
        """Estimate the memory held."""
        return self._two.size_bytes() + self._one.size_bytes() + self._old.size_bytes()
