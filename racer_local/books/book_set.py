"""What the phrase books in use say about one place of a draft. Layer: pure.

The root of a draft is found by its last tokens in every book. The places below it only follow the
matches found there: to look each of them up anew brings as much as it costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from racer_local.books.phrase_book import DEPTH, BookMatch, PhraseBook
from racer_local.speculation.tree import TokenId

__all__ = ["BookGuess", "BookPlace", "BookSet", "drafted_from"]

# Candidates per place, the best ones: a large book knows some continuation of almost anything.
_MAX_GUESSES = 4
# A match longer by one token weighs three times as much; beyond 12 tokens all weigh alike.
_WEIGHT = [3.0 ** min(n, 12) for n in range(DEPTH + 1)]


class BookGuess(NamedTuple):
    """What books say about one candidate.

    Attributes:
        token: the candidate.
        length: of its longest match.
        share: its share of all matches, longer ones weighing more; above 0, up to 1.
        n_matches: how many say it.
    """

    token: TokenId
    length: int
    share: float
    n_matches: int


class BookPlace:
    """One place: where what came before it stands in the books, and what followed there."""

    __slots__ = ("_books", "_found", "guesses")

    def __init__(self, books: Sequence[PhraseBook], found: list[list[BookMatch]]) -> None:
        """Take matches per book."""
        self._books = books
        self._found = found
        self.guesses = _guesses(found)

    def below(self, token: TokenId) -> BookPlace:
        """Return the place after one more token, with the matches that go on with it."""
        pairs = zip(self._books, self._found, strict=True)
        return BookPlace(self._books, [book.advance(found, token) for book, found in pairs])

    def origin(self, token: TokenId) -> str | None:
        """Return the name of the file with the longest match that says this token."""
        best: tuple[int, str] | None = None
        for book, matches in zip(self._books, self._found, strict=True):
            # The longest come first.
            match = next((match for match in matches if match.token == token), None)
            if match is not None and (best is None or match.length > best[0]):
                file = book.file_at(match.place)
                if file is not None:
                    best = match.length, file.name
        return best[1] if best else None


class BookSet:
    """The books in use.

    Attributes:
        books: all of one tokenizer.
    """

    __slots__ = ("books",)

    def __init__(self, books: Iterable[PhraseBook]) -> None:
        """Take books; there may be none."""
        self.books = tuple(books)

    def at(self, context: Sequence[TokenId]) -> BookPlace:
        """Look up the place after a context, of which the last ``DEPTH`` tokens count."""
        context = list(context[-DEPTH:])
        return BookPlace(self.books, [book.find(context) for book in self.books])

    def size_bytes(self) -> int:
        """Estimate the memory held."""
        return sum(book.size_bytes() for book in self.books)


def _guesses(found: Sequence[Sequence[BookMatch]]) -> list[BookGuess]:
    weights: dict[TokenId, float] = {}
    lengths: dict[TokenId, int] = {}
    counts: dict[TokenId, int] = {}
    for matches in found:
        for length, token, _ in matches:
            weights[token] = weights.get(token, 0.0) + _WEIGHT[length]
            counts[token] = counts.get(token, 0) + 1
            if length > lengths.get(token, 0):
                lengths[token] = length
    total = sum(weights.values())
    best = sorted(weights, key=weights.__getitem__, reverse=True)[:_MAX_GUESSES]
    return [BookGuess(t, lengths[t], weights[t] / total, counts[t]) for t in best]


def drafted_from(
    shelf: BookSet, text: Sequence[TokenId], places: Iterable[int]
) -> list[tuple[str, int]]:
    """Find the files that drafted tokens came from, those with most tokens first.

    Args:
        shelf: the books that were in use.
        text: prompt and answer.
        places: of the tokens in it that a book proposed.
    """
    counts: Counter[str] = Counter()
    for place in places:
        name = shelf.at(text[max(0, place - DEPTH) : place]).origin(text[place])
        if name is not None:
            counts[name] += 1
    return counts.most_common()
