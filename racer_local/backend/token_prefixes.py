"""Which tokens of a vocabulary begin with which shorter ones. Layer: pure (NumPy)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["TokenPrefixes"]

_Ids = NDArray[np.int32]

# Prefixes of more characters would be tested more often than they rule out anything.
_LONGEST = 2


class TokenPrefixes:
    """A forest: below a token of one or two whole characters are those that begin with it.

    Read when it is first worth it, for that takes a second in the largest vocabularies.

    Attributes:
        roots: tokens that begin with no shorter one, int32, ascending.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._n_uses = 0
        self._is_read = False
        self.roots: _Ids = np.empty(0, np.int32)

    def is_worth_reading(self, n_before: int) -> bool:
        """Count a use, and say whether there were as many before."""
        self._n_uses += 1
        return self._is_read or self._n_uses > n_before

    def read(self, pieces: Iterable[bytes | None]) -> None:
        """Take the bytes of every token, None for one that ends the text; once is enough."""
        if self._is_read:
            return
        pieces = list(pieces)
        short: dict[bytes, int] = {}
        starts_of: list[tuple[bytes, ...]] = []
        for token, piece in enumerate(pieces):
            starts = () if piece is None else _starts(piece)
            starts_of.append(starts)
            # The same piece may have several tokens; any of them can stand for it.
            if starts and starts[-1] == piece:
                short.setdefault(piece, token)
        parents = np.full(len(pieces), -1, np.int32)
        for token, starts in enumerate(starts_of):
            for start in reversed(starts):
                parent = short.get(start)
                if parent is not None and start != pieces[token]:
                    parents[token] = parent
                    break
        self.roots = np.flatnonzero(parents < 0).astype(np.int32)
        # What is below token t is order[first[t]:first[t + 1]].
        self._order = np.argsort(parents, kind="stable").astype(np.int32)
        self._first = np.searchsorted(parents[self._order], np.arange(len(pieces) + 1))
        self._is_read = True

    def longer(self, tokens: _Ids) -> _Ids:
        """Return what is right below some tokens."""
        first = self._first
        below = [self._order[first[t] : first[t + 1]] for t in tokens if first[t] < first[t + 1]]
        return np.concatenate(below) if below else np.empty(0, np.int32)


def _starts(piece: bytes) -> tuple[bytes, ...]:
    """Return the first character, and the first two, if they are whole."""
    if piece[:_LONGEST].isascii() and piece[:1] not in (b"", b"\0"):
        return (piece[:1], piece[:2]) if len(piece) > 1 else (piece[:1],)
    text = piece[: 4 * _LONGEST].decode("utf-8", "ignore")[:_LONGEST]
    starts = tuple(text[:n].encode("utf-8") for n in range(1, len(text) + 1))
    # Where something cannot be read it is left out: then these are no beginnings.
    return tuple(start for start in starts if piece.startswith(start) and start[0] != 0)
