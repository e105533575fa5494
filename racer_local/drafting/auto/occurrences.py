"""Where the newest words of a text occurred before, and for how long they match. Layer: pure.

The text is kept as it is, with a chain that links every position to the one before it at which
the same two tokens stood (the hash chains of LZ77 compressors). Adding a token costs O(1), and
following a chain gives the most recent earlier occurrences, whose matches are measured by
comparing backwards: there is no limit to the context beyond the text that is kept, and a match
may be longer than the depth of any trie. The automaton of ``ngram`` counts the whole text down
to its depth; this index looks at the most recent occurrences only, and at all of their length.
"""

from __future__ import annotations

import sys
from array import array
from typing import TypeAlias

from racer_local.speculation.tree import TokenId

__all__ = ["OccurrenceIndex", "Occurrences"]

# (position, match length) of earlier occurrences, the most recent first.
Occurrences: TypeAlias = list[tuple[int, int]]

# Earlier occurrences looked at, the most recent ones.
_MAX_OCCURRENCES = 24
# Matches are measured up to this length; beyond it all are alike.
_MAX_MATCH = 24
# Tokens kept; when there are twice as many the older half is dropped.
_MAX_TEXT = 16_384


class OccurrenceIndex:
    """A bounded text and its two-token chains.

    Attributes:
        text: the tokens kept.
        start: tokens dropped before them.
    """

    __slots__ = ("_head", "_link", "start", "text")

    def __init__(self) -> None:
        """Start with no text."""
        self.clear()

    def clear(self) -> None:
        """Forget the text."""
        self.start = 0
        self.text = array("i")
        self._link = array("i")
        self._head: dict[int, int] = {}

    def append(self, token: TokenId) -> None:
        """Add one token to the text."""
        text = self.text
        position = len(text)
        text.append(token)
        if position:
            key = text[position - 1] << 32 | token
            self._link.append(self._head.get(key, -1))
            self._head[key] = position
        else:
            self._link.append(-1)
        if position + 1 >= 2 * _MAX_TEXT:
            self._drop_half()

    def _drop_half(self) -> None:
        kept = self.text[-_MAX_TEXT:]
        start = self.start + len(self.text) - len(kept)
        self.clear()
        for token in kept:
            self.append(token)
        self.start = start

    @property
    def n_tokens(self) -> int:
        """Tokens appended since the start."""
        return self.start + len(self.text)

    def is_repeated(self, before: TokenId, token: TokenId) -> bool:
        """Whether the text has ``token`` after ``before`` more than once."""
        position = self._head.get(before << 32 | token, -1)
        return position >= 0 and self._link[position] >= 0

    def match_length(self) -> int:
        """Count the last tokens, up to a limit, that also stood at their latest occurrence."""
        position = self._link[-1] if self._link else -1
        return self._measure(position) if position >= 0 else 0

    def _measure(self, position: int) -> int:
        """Measure how far back the text up to ``position`` matches its end, from two tokens on."""
        text = self.text
        end = len(text) - 1
        length = 2
        longest = min(_MAX_MATCH, position + 1)
        while length < longest and text[position - length] == text[end - length]:
            length += 1
        return length

    def latest(self) -> Occurrences:
        """Find earlier occurrences of the last two tokens, and how far back each matches."""
        link = self._link
        found: Occurrences = []
        if not link:
            return found
        position = link[-1]
        while position >= 0:
            found.append((position, self._measure(position)))
            if len(found) == _MAX_OCCURRENCES:
                break
            position = link[position]
        return found

    def advance(self, found: Occurrences, before: TokenId, token: TokenId) -> Occurrences:
        """Find occurrences after one more token that is not part of the text.

        Args:
            found: occurrences of what comes before ``token``.
            before: the token right before ``token``.
            token: the one more token.
        """
        text, link = self.text, self._link
        end = len(text) - 1
        after = [(p + 1, n + 1) for p, n in found if p < end and text[p + 1] == token]
        if len(after) < _MAX_OCCURRENCES:
            known = {p for p, _ in after}
            position = self._head.get(before << 32 | token, -1)
            while position >= 0 and len(after) < _MAX_OCCURRENCES:
                if position not in known:
                    after.append((position, 2))
                position = link[position]
        return after

    def size_bytes(self) -> int:
        """Estimate the memory held, Python's own objects included."""
        arrays = self.text.itemsize * 2 * len(self.text)
        return arrays + sys.getsizeof(self._head) + 68 * len(self._head)
