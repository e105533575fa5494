"""Copy-Logit: what the model itself ranked high the last time the same token came up.

Tables of the target's rows (the k likeliest next tokens and their probabilities), keyed by the
token the row belongs to, and by the last two tokens. A key without a row is unseen and proposes
nothing. Layer: pure.

Source: Copy-Logit of RACER, arXiv 2604.14885. Differs: keys of two tokens, which are beyond the
paper; in hkr04/RACER an unseen token has a row of zeros and proposes token 0.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from racer_local.drafting.racer.lru import RecencyList
from racer_local.speculation.tree import TokenId

__all__ = ["CopyLogit", "Row", "RowTable", "last_places", "pair_key"]

Row: TypeAlias = tuple[list[TokenId], list[float]]

# Rows kept; the least recently stored is dropped. With 8 tokens a row, 3 to 4 MB each.
_MAX_ONE_TOKEN_ROWS = 16_384
_MAX_TWO_TOKEN_ROWS = 16_384


class RowTable:
    """The most recently stored row of each key, for a bounded number of keys."""

    __slots__ = (
        "_capacity",
        "_ids",
        "_keys",
        "_positions",
        "_probs",
        "_recency",
        "_slots",
        "_width",
    )

    def __init__(self, capacity: int, width: int) -> None:
        """Make an empty table of at most ``capacity`` rows with ``width`` tokens each."""
        self._capacity = capacity
        self._width = width
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._slots: dict[int, int] = {}
        self._recency = RecencyList(self._capacity)
        # Slot 0 is never used: it is the head of the recency list.
        self._keys = np.zeros(1, dtype=np.int64)
        self._positions = np.zeros(1, dtype=np.int64)
        self._ids = np.zeros((1, self._width), dtype=np.int32)
        self._probs = np.zeros((1, self._width), dtype=np.float32)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._slots)

    def store(
        self,
        keys: Sequence[int],
        ids: NDArray[np.int32],
        probs: NDArray[np.float32],
        positions: Sequence[int] | NDArray[np.int64],
    ) -> None:
        """Remember one row per key; of equal keys the last one stays.

        Args:
            keys: one per row.
            ids: int32 [n, k]; tokens beyond the width of the table are dropped, missing ones
                have a probability of 0.
            probs: float32 [n, k].
            positions: where in the text each row was learned.
        """
        slots = [self._slot(key) for key in keys]
        # With few slots a key may have been evicted again by a later one: its slot then occurs
        # twice, and NumPy lets the last assignment win, which is the key that owns it.
        width = min(self._width, ids.shape[1])
        self._ids[slots, :width] = ids[:, :width]
        self._probs[slots, :width] = probs[:, :width]
        self._probs[slots, width:] = 0.0
        self._positions[slots] = positions

    def copy_from(self, other: RowTable, keys: Sequence[int], end: int) -> None:
        """Store the rows that another table learned for these keys before a position."""
        known = [key for key in keys if key in other._slots]
        slots = np.array([other._slots[key] for key in known], np.int64)
        is_early = other._positions[slots] < end
        found = [key for key, early in zip(known, is_early.tolist(), strict=True) if early]
        slots = slots[is_early]
        self.store(found, other._ids[slots], other._probs[slots], other._positions[slots])

    def _slot(self, key: int) -> int:
        slot = self._slots.get(key)
        if slot is not None:
            self._recency.move_after(slot)
            return slot
        if len(self._slots) < self._capacity:
            slot = len(self._slots) + 1
            if slot >= len(self._keys):
                self._grow()
        else:
            slot = self._recency.oldest
            del self._slots[int(self._keys[slot])]
            self._recency.remove(slot)
        self._slots[key] = slot
        self._keys[slot] = key
        self._recency.insert_after(slot)
        return slot

    def _grow(self) -> None:
        size = min(max(2 * len(self._keys), 256), self._capacity + 1)
        n_more = size - len(self._keys)
        self._keys = np.concatenate([self._keys, np.zeros(n_more, dtype=np.int64)])
        self._positions = np.concatenate([self._positions, np.zeros(n_more, dtype=np.int64)])
        more = np.zeros((n_more, self._width))
        self._ids = np.concatenate([self._ids, more.astype(np.int32)])
        self._probs = np.concatenate([self._probs, more.astype(np.float32)])

    def get(self, key: int) -> Row | None:
        """Look up the ids and probabilities last stored for ``key``; None if unseen."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        return self._ids[slot].tolist(), self._probs[slot].tolist()

    def size_bytes(self) -> int:
        """Estimate the memory held, Python's own objects included."""
        arrays = self._keys.nbytes + self._positions.nbytes + self._ids.nbytes + self._probs.nbytes
        table = sys.getsizeof(self._slots) + 64 * len(self._slots)
        return arrays + table + self._recency.size_bytes()


class CopyLogit:
    """Rows by last token, and optionally by the last two tokens."""

    __slots__ = ("_one", "_two")

    def __init__(self, width: int, *, two_token_keys: bool = True) -> None:
        """Make an empty table of rows with ``width`` tokens."""
        self._one = RowTable(_MAX_ONE_TOKEN_ROWS, width)
        self._two = RowTable(_MAX_TWO_TOKEN_ROWS, width) if two_token_keys else None

    @property
    def has_two_token_keys(self) -> bool:
        """Whether rows are keyed by the last two tokens as well."""
        return self._two is not None

    def clear(self) -> None:
        """Forget all rows."""
        self._one.clear()
        if self._two is not None:
            self._two.clear()

    def part(self, tokens: Sequence[TokenId]) -> CopyLogit:
        """Copy the rows that were learned in the first tokens of the text, which are these."""
        part, end = CopyLogit(self._one._width, two_token_keys=self.has_two_token_keys), len(tokens)
        part._one.copy_from(self._one, tokens, end)
        if part._two is not None and self._two is not None:
            part._two.copy_from(self._two, [*map(pair_key, [-1, *tokens], tokens)], end)
        return part

    def learn(
        self,
        pairs: Sequence[tuple[TokenId, TokenId]],
        ids: NDArray[np.int32],
        probs: NDArray[np.float32],
        positions: Sequence[int],
    ) -> None:
        """Store rows.

        Args:
            pairs: per row the token before (-1 if there is none) and the token it belongs to.
            ids: int32 [n, k], likeliest first.
            probs: float32 [n, k].
            positions: of the tokens in the text.
        """
        if not pairs:
            return
        self._one.store([token for _, token in pairs], ids, probs, positions)
        if self._two is not None:
            keys = [pair_key(before, token) for before, token in pairs]
            self._two.store(keys, ids, probs, positions)

    def one_token_row(self, token: TokenId) -> Row | None:
        """Look up the latest row of ``token``, whatever came before it."""
        return self._one.get(token)

    def two_token_row(self, before: TokenId, token: TokenId) -> Row | None:
        """Look up the latest row of ``token`` after ``before``."""
        return None if self._two is None else self._two.get(pair_key(before, token))

    def row(self, before: TokenId, token: TokenId) -> Row | None:
        """Look up the row of both tokens, else of the last one; None if unseen."""
        if self._two is not None:
            row = self._two.get(pair_key(before, token))
            if row is not None:
                return row
        return self._one.get(token)

    def size_bytes(self) -> int:
        """Estimate the memory held."""
        two = 0 if self._two is None else self._two.size_bytes()
        return self._one.size_bytes() + two


def pair_key(before: TokenId, token: TokenId) -> int:
    """Number a pair of tokens; -1, no token before, makes a key of its own."""
    return (before + 1) << 32 | token


def last_places(tokens: Sequence[TokenId], *, by_pair: bool) -> NDArray[np.int32]:
    """List the last place of every key of a text: rows of earlier ones would be overwritten.

    Args:
        tokens: the text.
        by_pair: keys are pairs of tokens; else single ones.

    Returns:
        int32, ascending.
    """
    keys = np.array(tokens, dtype=np.int64)
    if by_pair:
        keys[1:] |= (keys[:-1] + 1) << 32
    _, from_end = np.unique(keys[::-1], return_index=True)
    return np.sort(len(keys) - 1 - from_end).astype(np.int32)
