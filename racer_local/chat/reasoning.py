"""Tells a model's reasoning from its answer while the text streams. Layer: pure."""

from __future__ import annotations

__all__ = ["ReasoningScanner"]

_PAIRS = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"))


class ReasoningScanner:
    """Splits streamed text into reasoning and answer; the tags count as reasoning.

    Reasoning comes first or not at all: a tag inside the answer, say in an answer about such
    tags, opens nothing. Text that might be the beginning of a tag is held back.
    """

    def __init__(self, prompt_end: str = "") -> None:
        """Start; some templates end the prompt itself with the opening tag."""
        end = prompt_end.rstrip()
        self._close = next((close for start, close in _PAIRS if end.endswith(start)), "")
        self._is_decided = bool(self._close)
        self._held = ""

    def push(self, text: str) -> list[tuple[str, bool]]:
        """Add text; return what can be shown, in order, each with whether it is reasoning."""
        self._held += text
        shown: list[tuple[str, bool]] = []
        if not self._is_decided:
            start = self._held.lstrip()
            if not start or any(tag.startswith(start) for tag, _ in _PAIRS):
                return shown
            self._close = next((close for tag, close in _PAIRS if start.startswith(tag)), "")
            self._is_decided = True
        if self._close:
            at = self._held.find(self._close)
            if at < 0:
                n_hold = _n_possible_start(self._held, self._close)
                ready, self._held = (
                    self._held[: len(self._held) - n_hold],
                    self._held[len(self._held) - n_hold :],
                )
                return [(ready, True)] if ready else shown
            end = at + len(self._close)
            shown.append((self._held[:end], True))
            self._held, self._close = self._held[end:], ""
        if self._held:
            shown.append((self._held, False))
            self._held = ""
        return shown

    def flush(self) -> list[tuple[str, bool]]:
        """Return what is still held back at the end of the text."""
        rest, self._held = self._held, ""
        return [(rest, bool(self._close))] if rest else []


def _n_possible_start(text: str, tag: str) -> int:
    for n in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-n:]):
            return n
    return 0
