"""From tokens to text: whole characters only, and stop strings. Layer: pure."""

from __future__ import annotations

import codecs
from typing import Literal

from racer_local.decoding.scanner import Scanner

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


class StopScanner(Scanner):
    """Cuts a stream of text before the stop string that begins first."""

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string was found; ``flush`` may find one too."""
        return self.found is not None
