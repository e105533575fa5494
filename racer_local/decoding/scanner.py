"""Finds many strings at once in a text that comes in chunks. Layer: pure."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ahocorasick

__all__ = ["Scanner"]


class Scanner:
    """Gives the text before the string that begins first, wherever the chunks are cut.

    Text that may be the beginning of a string is held back until that is decided: no more than
    the longest end of the text that a string begins with. What is given and found depends on the
    whole text only. Of strings that begin at the same character the shortest is found.

    Attributes:
        found: the string that was found, or None.
        rest: the text that had come after it.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        """Look for any of ``strings``; empty ones are ignored."""
        wanted = tuple(string for string in strings if string)
        self._automaton = _automaton(wanted) if wanted else None
        self._held = ""
        self.found: str | None = None
        self.rest = ""

    def push(self, text: str) -> str:
        """Add text; return what is sure to come before any string, '' after one was found."""
        if self.found is not None:
            self.rest += text
            return ""
        if self._automaton is None or not text:
            return text
        self._held += text
        first, begins = self._search()
        # One that began before it may still be found.
        if first is not None and first[0] <= begins:
            return self._find(first)
        shown, self._held = self._held[:begins], self._held[begins:]
        return shown

    def flush(self) -> str:
        """Return what is held back at the end of the text, up to a string that was found."""
        first = self._search()[0] if self._held else None
        if first is not None:
            return self._find(first)
        shown, self._held = self._held, ""
        return shown

    def _search(self) -> tuple[tuple[int, str] | None, int]:
        """Return the string that begins first in what is held, and where it may begin one."""
        assert self._automaton is not None
        n_held = len(self._held)
        first: tuple[int, str] | None = None
        last, begins = -1, n_held
        # What was held before is read again, which is never more than the longest string: the
        # library's iterators corrupt memory where they are given more text.
        for at, (n, string) in self._automaton.iter(self._held):
            # For each character, the longest beginning that ends there comes first.
            if at != last:
                last, begins = at, at + 1 - n
            if string is not None and (first is None or at + 1 - n < first[0]):
                first = at + 1 - n, string
        return first, begins if last == n_held - 1 else n_held

    def _find(self, first: tuple[int, str]) -> str:
        at, self.found = first
        shown, self.rest = self._held[:at], self._held[at + len(self.found) :]
        self._held = ""
        return shown


@functools.lru_cache(maxsize=16)
def _automaton(strings: tuple[str, ...]) -> Any:
    """Return an automaton that tells every beginning of a string, and which ones are whole."""
    automaton = ahocorasick.Automaton()
    for string in strings:
        for n in range(1, len(string)):
            automaton.add_word(string[:n], (n, None))
    for string in strings:
        automaton.add_word(string, (len(string), string))
    automaton.make_automaton()
    return automaton
