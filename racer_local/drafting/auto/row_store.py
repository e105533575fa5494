"""Copy-Logit rows of the current text, three per place, as cells of the estimates. Layer: pure.

The row of the last two tokens, and the two latest rows of the last token: what the model ranked
high the time before last is often right where the last time's row is not. Of the ideas for more
candidates (continuations of one token, the row of the place before as a source, rows keyed by
three tokens) this was the only one that helped in replay, from 1.339 to 1.350 on a steep curve
and from 2.57 to 2.58 on a flat one.

A row is looked up several times at every place of a draft and stored once, so it is kept as the
estimates want it: the place of each of its tokens among the cells of a row.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from racer_local.drafting.auto.estimate import N_PROBS, PROB_BIN
from racer_local.drafting.racer.copy_logit import pair_key
from racer_local.speculation.tree import TokenId

__all__ = ["MIN_PROB", "RowPlaces", "RowStore", "row_places"]

# The place, within a block of ``N_ROW`` cells, of every token that a row names; best first.
RowPlaces: TypeAlias = dict[TokenId, int]

# Rows kept per table; the least recently stored is dropped. Full tables hold about 12 MB.
_MAX_TWO_TOKEN_ROWS = 8_192
_MAX_ONE_TOKEN_ROWS = 8_192
# Tokens of a row below this probability are no candidates.
MIN_PROB = 0.01
# A dictionary of a few tokens and their numbers; an entry of an ordered dictionary with its key.
_ROW_BYTES, _ENTRY_BYTES = 420, 140


def row_places(tokens: Sequence[TokenId], probs: Sequence[float]) -> RowPlaces:
    """Number the cells of the tokens that a row names.

    Args:
        tokens: likeliest first.
        probs: of each; 0 pads short rows.
    """
    places: RowPlaces = {}
    rank_offset = 2
    for token, prob in zip(tokens, probs, strict=False):
        # Written so that it also ends at NaN.
        if not prob >= MIN_PROB:
            break
        if token not in places:
            places[token] = rank_offset + PROB_BIN[min(1000, int(prob * 1000))]
            if rank_offset < 2 + 3 * N_PROBS:
                rank_offset += N_PROBS
    return places


class _Table:
    """The most recently stored rows, for a bounded number of keys."""

    __slots__ = ("_capacity", "rows")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.rows: OrderedDict[int, RowPlaces] = OrderedDict()

    def store(self, key: int, row: RowPlaces) -> RowPlaces | None:
        """Keep the row, and return the one that had its key."""
        before = self.rows.pop(key, None)
        self.rows[key] = row
        if len(self.rows) > self._capacity:
            self.rows.popitem(last=False)
        return before

    def copy_from(self, other: _Table, keys: Iterable[int]) -> None:
        """Keep the rows that another table has of these keys, oldest first."""
        for key in keys:
            row = other.rows.get(key)
            if row is not None:
                self.store(key, row)


class RowStore:
    """Rows by the last two tokens and by the last one, of the latter also the one before."""

    __slots__ = ("_old", "_one", "_two")

    def __init__(self) -> None:
        """Make an empty store."""
        self.clear()

    @property
    def capacity(self) -> int:
        """Most rows of two tokens that are kept."""
        return _MAX_TWO_TOKEN_ROWS

    def clear(self) -> None:
        """Forget all rows."""
        self._two = _Table(_MAX_TWO_TOKEN_ROWS)
        self._one = _Table(_MAX_ONE_TOKEN_ROWS)
        self._old = _Table(_MAX_ONE_TOKEN_ROWS)

    def part(self, tokens: Sequence[TokenId], rest: Sequence[TokenId]) -> RowStore:
        """Copy the rows that were learned in the first tokens of a text.

        Args:
            tokens: the first ones.
            rest: those behind them: what has its key may have been learned there.
        """
        part = RowStore()
        text = [-1, *tokens, *rest]
        pairs = [*map(pair_key, text, text[1:])]
        late = set(pairs[len(tokens) :])
        part._two.copy_from(self._two, (key for key in pairs if key not in late))
        late = set(rest)
        keys = [token for token in tokens if token not in late]
        part._one.copy_from(self._one, keys)
        part._old.copy_from(self._old, keys)
        return part

    def learn(
        self,
        pairs: Sequence[tuple[TokenId, TokenId]],
        ids: NDArray[np.int32],
        probs: NDArray[np.float32],
    ) -> None:
        """Store rows, the latest last.

        Args:
            pairs: per row the token before (-1 if there is none) and the token it belongs to.
            ids: int32 [n, k], likeliest first.
            probs: float32 [n, k].
        """
        for (before, token), some_ids, some_probs in zip(
            pairs, ids.tolist(), probs.tolist(), strict=True
        ):
            row = row_places(some_ids, some_probs)
            self._two.store(pair_key(before, token), row)
            replaced = self._one.store(token, row)
            if replaced is not None:
                self._old.store(token, replaced)

    def two(self, before: TokenId, token: TokenId) -> RowPlaces | None:
        """Look up the row of ``token`` after ``before``."""
        return self._two.rows.get(pair_key(before, token))

    def one(self, token: TokenId) -> RowPlaces | None:
        """Look up the latest row of ``token``."""
        return self._one.rows.get(token)

    def old(self, token: TokenId) -> RowPlaces | None:
        """Look up the row of ``token`` before the latest one."""
        return self._old.rows.get(token)

    def size_bytes(self) -> int:
        """Estimate the memory held, Python's own objects included."""
        tables = [table.rows for table in (self._two, self._one, self._old)]
        # A row is shared by the tables: only those of two tokens and the older ones are counted.
        n_rows = len(tables[0]) + len(tables[2])
        entries = sum(sys.getsizeof(rows) + _ENTRY_BYTES * len(rows) for rows in tables)
        return _ROW_BYTES * n_rows + entries
