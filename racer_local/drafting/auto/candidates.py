"""What may come next at one place, and what speaks for it. Layer: pure.

Candidates are the union of what followed earlier occurrences of the last tokens and of what
Copy-Logit rows name: the row of the last two tokens, the two latest rows of the last token, and
a remembered row of another text where this text has none. Each is described by its cells
(``estimate``). Only what is known when a draft is made enters here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from racer_local.drafting.auto.estimate import (
    BLEND,
    DISTANCE_BIN,
    HITS,
    LAST,
    LENGTH_BIN,
    MATCH,
    MEMORY,
    MIX,
    N_DISTANCES,
    N_KINDS,
    N_LENGTHS,
    N_PROBS,
    N_ROW,
    N_SHARES,
    OLD,
    ONE,
    SHARE_BIN,
    TWO,
    WHERE,
    Cells,
)
from racer_local.drafting.auto.occurrences import OccurrenceIndex, Occurrences
from racer_local.drafting.auto.row_store import RowPlaces
from racer_local.speculation.tree import TokenId

__all__ = ["Candidates", "PlaceRows", "describe"]

_ABSENT, _UNLISTED = 0, 1
_NO_MEMORY = MEMORY + N_ROW
# A match longer by one token weighs three times as much; beyond 12 tokens all weigh alike.
_WEIGHT = [3.0 ** min(n, 12) for n in range(320)]
_LENGTH_CLASS = (0, 0, 1, 1, 1, 2, 2, 2, 2)
_SHARE_CLASS = (1, 1, 1, 2, 2, 2, 3, 3, 3)
# Shares from this bin on (0.75) make a candidate of the better kind.
_GOOD_SHARE = 6


class Candidates(NamedTuple):
    """The candidates of one place, in parallel lists.

    Attributes:
        tokens: all different.
        cells: what describes each.
        n_retrieved: the first so many followed an earlier occurrence; the others are from rows.
    """

    tokens: list[TokenId]
    cells: list[Cells]
    n_retrieved: int


@dataclass(frozen=True, slots=True)
class PlaceRows:
    """The rows that may speak about one place; None where there is none.

    Attributes:
        two: of the last two tokens.
        one: the latest of the last token.
        old: the one of the last token before that.
        memory: from other texts.
        has_memory: whether a memory was asked.
        last: of the last decoded place before the root.
    """

    two: RowPlaces | None
    one: RowPlaces | None
    old: RowPlaces | None
    memory: RowPlaces | None
    has_memory: bool
    last: RowPlaces


class _Matches:
    """What followed the earlier occurrences of one place, per token."""

    __slots__ = ("best", "blend", "known", "longest", "recent", "total", "where")

    def __init__(self, index: OccurrenceIndex, found: Occurrences) -> None:
        text = index.text
        end = len(text) - 1
        self.blend: dict[TokenId, float] = {}
        self.best: dict[TokenId, int] = {}
        self.where: dict[TokenId, int] = {}
        # (length, what followed), the most recent first.
        known = self.known = [(n, text[p + 1], p) for p, n in found if p < end]
        blend, best, where = self.blend, self.best, self.where
        for length, token, position in known:
            weight = _WEIGHT[length]
            if token in blend:
                blend[token] += weight
                if length > best[token]:
                    best[token] = length
                    where[token] = position
            else:
                blend[token] = weight
                best[token] = length
                where[token] = position
        self.total = sum(blend.values())
        self.longest = max(best.values(), default=0)
        self.recent = known[0][1] if known else -1

    def share(self, token: TokenId) -> tuple[int, int]:
        """Bin of the token's share among matches as long as its own, and its count (to 3)."""
        known = self.known
        if len(self.blend) == 1:
            return N_SHARES - 1, min(len(known), 3)
        length = self.best[token]
        n_all = n_own = 0
        for other_length, other, _ in known:
            if other_length >= length:
                n_all += 1
                if other == token:
                    n_own += 1
        return SHARE_BIN[1000 * n_own // n_all], min(n_own, 3)


def describe(
    index: OccurrenceIndex, found: Occurrences, rows: PlaceRows, hit_bin: int, answer_start: int
) -> Candidates:
    """List the candidates of one place.

    Args:
        index: the text.
        found: earlier occurrences of what comes before the place.
        rows: what rows say.
        hit_bin: recent share of right first guesses, 0 to ``N_HITS`` - 1.
        answer_start: position from which on the text was generated.
    """
    matches = _Matches(index, found)
    two, one, old, memory = rows.two or {}, rows.one or {}, rows.old or {}, rows.memory or {}
    last = rows.last
    no_two = _ABSENT if rows.two is None else _UNLISTED
    no_one = _ABSENT if rows.one is None else _UNLISTED
    no_old = _ABSENT if rows.old is None else _UNLISTED
    no_memory = _ABSENT if rows.memory is None else _UNLISTED
    one_block = ONE if rows.two is None else ONE + N_ROW
    hits = HITS + hit_bin * N_KINDS
    tokens = list(dict.fromkeys([*matches.blend, *two, *one, *old, *memory]))
    n_retrieved = len(matches.blend)
    cells: list[Cells] = []
    for i, token in enumerate(tokens):
        in_two = two.get(token, no_two)
        mix = _mix(in_two)
        in_rows = (
            TWO + in_two,
            one_block + one.get(token, no_one),
            OLD + old.get(token, no_old),
            LAST + last.get(token, _ABSENT),
            MEMORY + memory.get(token, no_memory) if rows.has_memory else _NO_MEMORY,
        )
        if i < n_retrieved:
            cells.append(_match_cells(index, matches, token, mix, hits, answer_start) + in_rows)
        else:
            kind = 7 if in_two > _UNLISTED else 6
            cells.append((MIX + mix, hits + kind, *in_rows))
    return Candidates(tokens, cells, n_retrieved)


def _mix(in_two: int) -> int:
    if in_two <= _UNLISTED:
        return in_two
    # Below rank 0 all count as improbable.
    return 2 + min(5, (in_two - 2) // 2) if in_two < 2 + N_PROBS else 2


def _match_cells(
    index: OccurrenceIndex,
    matches: _Matches,
    token: TokenId,
    mix: int,
    hits: int,
    answer_start: int,
) -> Cells:
    share, count = matches.share(token)
    blend = SHARE_BIN[int(1000 * matches.blend[token] / matches.total)]
    length = LENGTH_BIN[matches.best[token]]
    length_class = _LENGTH_CLASS[length]
    is_recent = int(token == matches.recent)
    position = matches.where[token]
    distance = DISTANCE_BIN[min(250, len(index.text) - 1 - position)]
    source = (position >= answer_start) * 3 + length_class
    kind = length_class + (3 if blend >= _GOOD_SHARE else 0)
    return (
        MATCH + (length * N_SHARES + share) * 3 + count - 1,
        BLEND + (blend * 2 + is_recent) * N_LENGTHS + LENGTH_BIN[matches.longest],
        MIX + (_SHARE_CLASS[blend] * 3 + length_class) * 8 + mix,
        hits + kind,
        WHERE + (source * N_DISTANCES + distance) * 2 + is_recent,
    )
