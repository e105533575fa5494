"""What a line typed into a chat means: text, text over several lines, a command. Layer: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Entry", "entries", "is_unfinished", "parse_entry"]

_FENCE = '"""'
# A path such as /usr/bin is text.
_COMMAND = re.compile(r"/(\?|[A-Za-z][A-Za-z-]*)(?:\s+(.*))?\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that the user entered.

    Attributes:
        command: name of a command without its slash, in lower case, or '' for text.
        text: the text, or what follows the command.
    """

    command: str
    text: str


def is_unfinished(text: str) -> bool:
    '''Tell whether a text that was opened with """ still has to be closed.'''
    body = text.lstrip()
    match = _COMMAND.match(body)
    if match is not None:
        body = (match[2] or "").lstrip()
    return body.startswith(_FENCE) and _FENCE not in body[len(_FENCE) :]


def parse_entry(text: str) -> Entry:
    '''Read an entry; """ around a text is not part of it, nor is a newline next to it.'''
    match = _COMMAND.match(text.strip())
    if match is not None:
        return Entry(match[1].lower(), _unfenced(match[2] or ""))
    return Entry("", _unfenced(text))


def _unfenced(text: str) -> str:
    body = text.strip()
    if not body.startswith(_FENCE):
        return text
    inner = body[len(_FENCE) :].removeprefix("\r").removeprefix("\n")
    inner, _, rest = inner.partition(_FENCE)
    return inner.removesuffix("\n") + rest


def entries(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of a file to entries; one that is never closed ends with the lines."""
    open_text: str | None = None
    for line in lines:
        text = line.rstrip("\r\n")
        open_text = text if open_text is None else f"{open_text}\n{text}"
        if not is_unfinished(open_text):
            yield open_text
            open_text = None
    if open_text is not None:
        yield open_text
