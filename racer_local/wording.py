"""Pieces of messages: names that come from outside, and numbers of things. Layer: pure."""

from __future__ import annotations

__all__ = ["counted", "quoted"]

_MAX_SHOWN_CHARS = 160


def counted(n: int, thing: str) -> str:
    """Return a number with a regular English noun, as in "1 file" and "2 files"."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def quoted(text: str) -> str:
    """Return text in quotes, on one line, of bounded length, safe to print anywhere."""
    if len(text) > _MAX_SHOWN_CHARS:
        half = _MAX_SHOWN_CHARS // 2
        text = f"{text[:half]}...{text[-half:]}"
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return f"'{shown}'"
