"""Checks JSON that has no type of its own: schemas, parameters. Layer: pure."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["check_plain_json", "check_text"]

_MAX_DEPTH = 32
_MAX_VALUES = 10_000
_MAX_CHARS = 256 * 1024
_MAX_NUMBER = 2**53


def check_plain_json(value: Any) -> Any:
    """Return the value if it is of a reasonable size and has nothing odd in it.

    Raises:
        ValueError: it is too deep or too large, or has a number or text that JSON cannot have.
    """
    n_values = n_chars = 0
    rest: list[tuple[Any, int]] = [(value, 0)]
    while rest:
        item, depth = rest.pop()
        n_values += 1
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
        if isinstance(item, dict):
            rest.extend((key, depth) for key in item)
            rest.extend((inner, depth + 1) for inner in item.values())
        elif isinstance(item, list):
            rest.extend((inner, depth + 1) for inner in item)
        elif isinstance(item, str):
            n_chars += len(item)
            if not _is_sound(item):
                raise ValueError("a text has half a character (a lone surrogate)")
        elif isinstance(item, float) and not math.isfinite(item):
            raise ValueError("a number is not finite")
        elif isinstance(item, int) and abs(item) > _MAX_NUMBER:
            raise ValueError("a number is too large")
        if n_values > _MAX_VALUES or n_chars > _MAX_CHARS:
            raise ValueError(f"larger than {_MAX_VALUES} values or {_MAX_CHARS} characters")
    return value


def check_text(text: str) -> str:
    """Return the text if it can be written as UTF-8.

    Raises:
        ValueError: it has half a character.
    """
    if not _is_sound(text):
        raise ValueError("the text has half a character (a lone surrogate)")
    return text


def _is_sound(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
