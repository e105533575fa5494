"""One place of a draft: what may come there, and how likely it is. Layer: pure."""

from __future__ import annotations

from racer_local.books.book_set import BookPlace
from racer_local.drafting.auto.candidates import Candidates
from racer_local.drafting.auto.estimate import Estimator
from racer_local.drafting.auto.occurrences import Occurrences
from racer_local.drafting.auto.phrase_cells import add_guesses
from racer_local.speculation.tree import TokenId

__all__ = ["Place"]


class Place:
    """One place of a draft: its candidates, their estimates, and the places below it."""

    __slots__ = ("below", "book", "candidates", "credit", "estimates", "found", "probs", "token")

    def __init__(
        self,
        token: TokenId,
        found: Occurrences,
        candidates: Candidates,
        estimator: Estimator,
        book: BookPlace | None,
        book_hits: float,
    ) -> None:
        """Describe the candidates; ``book_hits`` is how often books were right lately."""
        self.token = token
        self.found = found
        self.book = book
        # Tokens that are proposed because a phrase book says them.
        self.credit: frozenset[TokenId] = frozenset()
        if book is not None and book.guesses:
            own = max((length for _, length in found), default=0)
            candidates, self.credit = add_guesses(candidates, book.guesses, own, book_hits)
        self.candidates = candidates
        self.estimates = estimator.estimate(candidates.cells)
        self.probs = estimator.calibrate(candidates.cells, self.estimates)
        self.below: dict[TokenId, Place] = {}
