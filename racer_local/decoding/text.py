"""From tokens to text: whole characters only, and stop strings. Layer: pure."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Literal

__all__ = ["StopScanner", "TextDecoder"]


class TextDecoder:
    """Turns the bytes of tokens into text; never emits half a character.

    A character may be spread over several tokens: its bytes are held back until it is whole.
    Bytes that can never become one are replaced by U+FFFD. A character that is still unfinished
    when the generation ends is left out.
    """

    def __init__(self, errors: Literal["replace", "ignore"] = "replace") -> None:
        """Start with nothing held back; ``ignore`` leaves out what can be no character."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def push(self, piece: bytes) -> str:
        """Add the bytes of one token and return the characters that are now whole."""
        return self._decoder.decode(piece)


class StopScanner:
    """Cuts a stream of text before the first stop string, wherever its parts arrive.

    Text that might be the beginning of a stop string is held back until that is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for any of ``stops``; the one that begins first ends the text."""
        self._stops = tuple(stops)
        self._held = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """Add text and return what can be shown; '' after a stop string was found."""
        if self.is_stopped:
            return ""
        if not self._stops:
            return text
        self._held += text
        found = [at for at in map(self._held.find, self._stops) if at >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            self.is_stopped = True
            return shown
        n_hold = self._n_possible_start()
        n_show = len(self._held) - n_hold
        shown, self._held = self._held[:n_show], self._held[n_show:]
        return shown

    def _n_possible_start(self) -> int:
        """Length of the longest end of the held text that a stop string begins with."""
        longest = max(map(len, self._stops)) - 1
        for n in range(min(longest, len(self._held)), 0, -1):
            end = self._held[-n:]
            if any(stop.startswith(end) for stop in self._stops):
                return n
        return 0

    def flush(self) -> str:
        """Return what is held back when the generation ends without a stop string."""
        shown, self._held = self._held, ""
        return shown
