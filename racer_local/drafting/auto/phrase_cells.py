"""How the guesses of phrase books enter the estimates. Layer: pure.

Their cells come after those of ``estimate`` and are theirs alone, so that without a book nothing
changes. A token that only books propose has no other cells; one that the text or a row proposes
too has these in addition, from blocks of their own: agreement is learned apart.

| block | question |
| --- | --- |
| PHRASE | length of the longest match, share of all matches, how many |
| RIVAL | the text's own longest match: none, shorter, as long or longer; length and share |
| RUN | recent share of right first guesses of the books: are they being quoted?; length |

Each block is there twice, for tokens of books alone and for tokens known otherwise too.
"""

from __future__ import annotations

from collections.abc import Sequence

from racer_local.books.book_set import BookGuess
from racer_local.books.phrase_book import DEPTH
from racer_local.drafting.auto.book_weights import BOOK_CENTI_WEIGHTS
from racer_local.drafting.auto.candidates import Candidates
from racer_local.drafting.auto.estimate import (
    LENGTH_BIN,
    N_CELLS,
    N_HITS,
    N_LENGTHS,
    N_SHARES,
    SHARE_BIN,
    Cells,
)
from racer_local.speculation.tree import TokenId

__all__ = ["N_BOOK_CELLS", "OUTMATCHED", "add_guesses"]

_N_PHRASE = N_LENGTHS * N_SHARES * 3
_N_RIVAL = 4 * 3 * 3
_PHRASE = N_CELLS
_RIVAL = _PHRASE + 2 * _N_PHRASE
_N_RUN = N_HITS * 3
_RUN = _RIVAL + 2 * _N_RIVAL
N_BOOK_CELLS = 2 * (_N_PHRASE + _N_RIVAL + _N_RUN)
assert len(BOOK_CENTI_WEIGHTS) == N_BOOK_CELLS
# Cells, from the first of books on, of tokens of books alone against a match of the text that is as
# long or longer.
OUTMATCHED = range(_RIVAL - N_CELLS + 2 * 9, _RIVAL - N_CELLS + 4 * 9)

_LENGTH_CLASS = [0 if n < 5 else 1 if n < 10 else 2 for n in range(DEPTH + 1)]
_SHARE_CLASS = (0, 0, 0, 1, 1, 1, 2, 2, 2)
# The text's own matches count from two tokens on, books' from three.
_LEAST_OWN = 3


def add_guesses(
    found: Candidates, guesses: Sequence[BookGuess], own_length: int, hits: float = 0.5
) -> tuple[Candidates, frozenset[TokenId]]:
    """Add the guesses of books to the candidates of a place.

    Args:
        found: what the text and the rows propose.
        guesses: what books propose.
        own_length: the text's longest match here.
        hits: recent share of right first guesses of the books.

    Returns:
        All candidates, and the tokens among them that are the books' credit: those that the text
        itself does not continue with, or only after a shorter match.
    """
    if not guesses:
        return found, frozenset()
    tokens, cells = list(found.tokens), list(found.cells)
    credit = set()
    hit_bin = min(N_HITS - 1, int(hits * N_HITS))
    for guess in guesses:
        is_longer = guess.length > own_length
        if guess.token in tokens:
            place = tokens.index(guess.token)
            cells[place] = (*cells[place], *_cells(guess, own_length, hit_bin, 1))
            if place >= found.n_retrieved or is_longer:
                credit.add(guess.token)
        else:
            tokens.append(guess.token)
            cells.append(_cells(guess, own_length, hit_bin, 0))
            credit.add(guess.token)
    return Candidates(tokens, cells, found.n_retrieved), frozenset(credit)


def _cells(guess: BookGuess, own_length: int, hit_bin: int, is_known: int) -> Cells:
    share = SHARE_BIN[int(1000 * guess.share)]
    phrase = (LENGTH_BIN[guess.length] * N_SHARES + share) * 3 + min(guess.n_matches, 3) - 1
    own = min(own_length, DEPTH)
    rival = 0
    if own >= _LEAST_OWN:
        rival = 1 if own < guess.length else 2 if own == guess.length else 3
    length_class = _LENGTH_CLASS[guess.length]
    rival = (rival * 3 + length_class) * 3 + _SHARE_CLASS[share]
    return (
        _PHRASE + is_known * _N_PHRASE + phrase,
        _RIVAL + is_known * _N_RIVAL + rival,
        _RUN + is_known * _N_RUN + hit_bin * 3 + length_class,
    )
