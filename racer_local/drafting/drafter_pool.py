"""One drafter per conversation: what one text taught is not used in another. Layer: pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from racer_local.drafting.guarded_drafter import GuardedDrafter
from racer_local.speculation.tree import TokenId

__all__ = ["DrafterPool"]


class DrafterPool:
    """Hands out the drafter that knows the text; makes new ones up to a limit."""

    def __init__(self, make: Callable[[], GuardedDrafter], limit: int = 4) -> None:
        """Keep at most ``limit`` drafters; the first is made at once.

        Args:
            make: makes a drafter that knows no text.
            limit: beyond it the least recently used one starts afresh.
        """
        self._make = make
        self._limit = max(1, limit)
        # Most recently used last.
        self._drafters = [make()]

    @property
    def latest(self) -> GuardedDrafter:
        """The drafter that was handed out last."""
        return self._drafters[-1]

    def pick(self, prompt: Sequence[TokenId]) -> GuardedDrafter:
        """Return the drafter whose text ``prompt`` continues, or one that may be reset."""
        best = max(self._drafters, key=lambda drafter: drafter.n_known_of(prompt))
        if best.n_known_of(prompt) <= 0:
            blank = next((d for d in self._drafters if d.n_known == 0), None)
            if blank is not None:
                best = blank
            elif len(self._drafters) < self._limit:
                best = self._make()
                self._drafters.append(best)
            else:
                best = self._drafters[0]
        self._drafters.remove(best)
        self._drafters.append(best)
        return best

    def forget(self) -> None:
        """Drop all that was learned, and all drafters but one."""
        self._drafters = [self._drafters[-1]]
        self._drafters[0].forget()
