"""Fit the shipped weights of phrase books to recorded text. Layer: pure.

    python -m racer_local.research.fit_books TRACE.npz=BOOK.npz... TRACE.npz=... > book_weights.py

As ``fit_priors``, with the other weights given: each trace is drafted with its book, one that
knows its subject, one that does not, or (without a name) a memory of every third of its own
texts. All kinds are needed: from one alone books would be believed everywhere or nowhere. Then the
text's own matches are put first: what only a book says begins at a disadvantage where the text has
a match as long, or longer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from racer_local.bench.trace import Record, read_trace
from racer_local.books.book_set import BookSet
from racer_local.books.phrase_book import PhraseBook
from racer_local.books.phrase_build import SourceText, build_book
from racer_local.drafting.auto.estimate import N_CELLS, Estimator
from racer_local.drafting.auto.phrase_cells import OUTMATCHED
from racer_local.research.fit_priors import Example, examples, fit, write_weights

__all__ = ["fit_books", "main", "memory_book"]

_DISADVANTAGE = -2.0


def fit_books(pairs: Sequence[tuple[Sequence[Record], BookSet]]) -> list[float]:
    """Fit the weights of book cells to records, each drafted with its books."""
    start = Estimator().weights
    blank = [*start[:N_CELLS], *(0.0 for _ in start[N_CELLS:])]
    found: list[Example] = []
    for records, shelf in pairs:
        for record in records:
            found.extend(examples(record, None, start, shelf))
    weights = fit(found, blank, N_CELLS)[N_CELLS:]
    for cell in OUTMATCHED:
        weights[cell] = min(weights[cell], _DISADVANTAGE)
    return weights


def memory_book(records: Sequence[Record]) -> PhraseBook:
    """Make a book of records, as if they had been remembered."""
    n_vocab = 1 + max(int(record.tokens.max()) for record in records)
    sources = [
        SourceText(str(i), 4 * len(record.tokens), i, record.tokens)
        for i, record in enumerate(records)
    ]
    return build_book(sources, "recorded", n_vocab)


def main(arguments: Sequence[str]) -> None:
    """Write ``book_weights.py`` to stdout."""
    pairs = []
    for argument in arguments:
        trace, _, book = argument.partition("=")
        records: Sequence[Record] = list(read_trace(trace))
        if book:
            shelf = BookSet([PhraseBook.load(book)])
        else:
            records = records[::3]
            shelf = BookSet([memory_book(records)])
        pairs.append((records, shelf))
    write_weights(
        fit_books(pairs),
        "BOOK_CENTI_WEIGHTS",
        "Weights that estimates of phrase books start from, in hundredths; see ``fit_books``.",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
