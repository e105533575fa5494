"""Conversations that are to be remembered, until they are over; what the page says about it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from racer_local.errors import ConfigError

__all__ = ["Unfinished", "book_notices"]

logger = logging.getLogger(__name__)


class Unfinished:
    """By session, the conversation that is not over and hence not kept yet."""

    def __init__(self, keep: Callable[[Sequence[int]], object]) -> None:
        """Start with none; ``keep`` takes the tokens of one that is over."""
        self._keep = keep
        self._said: dict[str, list[int]] = {}

    def note(self, session: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Take the newest state of a conversation; it ends the session's one before."""
        before = self._said.get(session, [])
        # A template may write what the model said in other tokens.
        half = len(before) // 2
        if list(prompt[:half]) != before[:half]:
            self.end(session)
        self._said[session] = [*prompt, *answer]

    def end(self, session: str) -> None:
        """Keep what a session said, if anything."""
        tokens = self._said.pop(session, None)
        if tokens:
            try:
                self._keep(tokens)
            except ConfigError as error:
                logger.warning("a conversation was not kept: %s", error)

    def end_all(self) -> None:
        """Keep what all sessions said."""
        for session in list(self._said):
            self.end(session)

    def drop_all(self) -> None:
        """Keep nothing of what was said."""
        self._said.clear()


def book_notices(
    opened: Sequence[str], wanted: Sequence[str], memory: Path | None
) -> Iterator[str]:
    """Say which phrase books are used, and where conversations are kept, if they are."""
    if opened:
        yield f"Guesses come from the phrase books too: {', '.join(opened)}."
    elif wanted:
        yield "The phrase books are of another tokenizer; this model guesses without them."
    if memory is not None:
        yield (
            f"Conversations are kept, once they are over, in {memory}, readable by you alone, and "
            "guessed from later. Nothing is sent anywhere. “racer-local forget” removes them."
        )
