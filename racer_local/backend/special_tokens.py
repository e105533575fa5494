"""Where a text may be cut so that its parts have the tokens of the whole. Layer: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import ahocorasick

__all__ = ["SpecialToken", "SpecialTokens"]

_PART_BYTES = 2048


class SpecialToken(NamedTuple):
    """A token that llama.cpp looks for in the text before it tokenizes what lies between.

    Attributes:
        text: how it is written.
        is_control: it is looked for only where control tokens are to be read.
        strips_left: white space before it is dropped.
        strips_right: white space after it is dropped.
    """

    text: bytes
    is_control: bool
    strips_left: bool = False
    strips_right: bool = False


class SpecialTokens:
    """The special tokens of a vocabulary.

    llama.cpp walks over all fragments found so far for each special token that it finds in a
    text: time with the square of their number, in one call that nothing ends. Cut behind special
    tokens into parts of bounded size, a text takes time in proportion to its length.
    """

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        """Take the special tokens, in any order."""
        known = [token for token in tokens if token.text]
        has_strips = any(token.strips_left or token.strips_right for token in known)
        by_text: dict[bytes, tuple[bool, bool]] = {}
        for token in known:
            # White space at an edge might be dropped by the token beside it, and then there is
            # no such token in the text.
            is_firm = not token.strips_right and not (
                has_strips and token.text != token.text.strip()
            )
            was_control, was_firm = by_text.get(token.text, (True, True))
            by_text[token.text] = was_control and token.is_control, was_firm and is_firm
        self._automaton = ahocorasick.Automaton()
        for text, (is_control, is_firm) in by_text.items():
            # A letter for each byte: then any bytes can be searched, and lengths are in bytes.
            letters = text.decode("latin-1")
            self._automaton.add_word(letters, (len(letters), is_control, is_firm))
        self._automaton.make_automaton()

    def parts(self, text: bytes, *, parse_special: bool) -> Iterator[bytes]:
        """Cut a UTF-8 text behind special tokens that are read in it; together they are the text.

        A part is ended where it can be as soon as it has some 2,000 bytes. Control tokens are
        read with ``parse_special`` only, tokens that a user defined always.
        """
        start = 0
        for cut in self._cuts(text, parse_special) if len(self._automaton) else ():
            if cut - start >= _PART_BYTES:
                yield text[start:cut]
                start = cut
        if start < len(text):
            yield text[start:]

    def _cuts(self, text: bytes, parse_special: bool) -> Iterator[int]:
        """Yield where special tokens end that are sure to be found.

        llama.cpp finds the longest special tokens first, wherever they are. So one is sure to be
        found if all others that overlap with it lie within it.
        """
        # Of those that end at the same byte the longest comes first, and the others lie within it.
        longest: dict[int, tuple[int, bool]] = {}
        for end, (n, is_control, is_firm) in self._automaton.iter(text.decode("latin-1")):
            if end not in longest and (parse_special or not is_control):
                longest[end] = n, is_firm
        matches = sorted(
            (end + 1 - n, -(end + 1), is_firm) for end, (n, is_firm) in longest.items()
        )
        first_end = last_end = 0
        is_sure = False
        for start, negative_end, is_firm in matches:
            if start >= last_end:
                if is_sure and first_end == last_end:
                    yield first_end
                first_end = last_end = -negative_end
                is_sure = is_firm
            else:
                last_end = max(last_end, -negative_end)
        if is_sure and first_end == last_end:
            yield first_end
