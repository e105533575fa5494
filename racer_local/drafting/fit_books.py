"""Fit the shipped weights of phrase books to recorded text. Layer: pure.

    python -m racer_local.drafting.fit_books TRACE.npz=BOOK.npz... > book_weights.py

As ``fit_priors``, with the other weights given: each trace is drafted with its book, one that
knows its subject or one that does not. Both kinds are needed: from the first alone books would be
believed everywhere. Then the text's own matches are put first: a token of a book alone never
gains from a match of the text that is as long, or longer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from racer_local.drafting.estimate import N_CELLS, Estimator
from racer_local.drafting.fit_priors import Example, examples, fit, write_weights
from racer_local.drafting.phrase_book import PhraseBook
from racer_local.drafting.phrase_shelf import Shelf
from racer_local.trace import Record, read_trace

__all__ = ["fit_books", "main"]


def fit_books(pairs: Sequence[tuple[Sequence[Record], Shelf]]) -> list[float]:
    """Fit the weights of book cells to records, each drafted with its books."""
    start = Estimator().weights
    blank = [*start[:N_CELLS], *(0.0 for _ in start[N_CELLS:])]
    found: list[Example] = []
    for records, shelf in pairs:
        for record in records:
            found.extend(examples(record, None, start, shelf))
    return fit(found, blank, N_CELLS)[N_CELLS:]


def main(arguments: Sequence[str]) -> None:
    """Write ``book_weights.py`` to stdout."""
    pairs = []
    for argument in arguments:
        trace, _, book = argument.partition("=")
        pairs.append((list(read_trace(trace)), Shelf([PhraseBook.load(book)])))
    write_weights(
        fit_books(pairs),
        "BOOK_CENTI_WEIGHTS",
        "Weights that estimates of phrase books start from, in hundredths; see ``fit_books``.",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
