"""Finds tool calls and thoughts in an answer as it streams. Layer: pure.

Models write a call as a JSON object with a name and arguments, within ``<tool_call>`` tags or as
the whole answer, and thoughts within ``<think>`` tags before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["AnswerReader", "Bit", "BitKind"]

BitKind: TypeAlias = Literal["content", "reasoning", "call", "arguments"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _THINK_END = "<think>", "</think>"
_HEAD = re.compile(
    r'\s*(?:\[\s*)?\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"\\]{1,64})"\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*'
)
# Longer than any head of a call with a name of 64 characters.
_MAX_HEAD = 400


@dataclass(frozen=True, slots=True)
class Bit:
    """A piece of an answer.

    Attributes:
        kind: ``call`` begins a tool call and has its function's name as text; ``arguments`` are
            JSON that belongs to the latest call.
        text: the piece.
    """

    kind: BitKind
    text: str


class AnswerReader:
    """Takes text as it comes, gives pieces as soon as their kind is certain."""

    def __init__(
        self,
        functions: Collection[str] = (),
        *,
        is_call: bool = False,
        is_thinking: bool = False,
        is_plain: bool = False,
    ) -> None:
        """Know what may be called.

        Args:
            functions: names; without any, calls are not looked for.
            is_call: a grammar makes the whole answer one call.
            is_thinking: the prompt has already opened the thoughts.
            is_plain: nothing is looked for.
        """
        self._functions = frozenset(functions)
        self._buffer = ""
        self._value: _ValueEnd | None = None
        self._is_tagged = False
        self.n_calls = 0
        if is_plain:
            self._state = "content"
        elif is_call:
            self._state = "head"
        elif is_thinking:
            self._state = "thinking"
        else:
            self._state = "start"

    def push(self, text: str) -> list[Bit]:
        """Take the next text."""
        self._buffer += text
        return list(_joined(self._read(is_end=False)))

    def finish(self) -> list[Bit]:
        """Give what was held back."""
        return list(_joined(self._read(is_end=True)))

    def _read(self, *, is_end: bool) -> Iterator[Bit]:
        states = {
            "start": self._start,
            "thinking": self._thinking,
            "content": self._content,
            "head": self._head,
            "value": self._arguments,
            "tail": self._tail,
        }
        while True:
            before = (self._state, len(self._buffer))
            yield from states[self._state](is_end)
            if before == (self._state, len(self._buffer)):
                return

    def _start(self, is_end: bool) -> Iterator[Bit]:
        text = self._buffer.lstrip()
        if not text:
            if is_end:
                yield from self._flush("content")
            return
        if text.startswith(_THINK):
            self._buffer = text[len(_THINK) :].lstrip("\n")
            self._state = "thinking"
        elif not is_end and _THINK.startswith(text):
            return
        elif self._functions and text[0] in "{[" and self._may_be_call(text, is_end):
            self._state = "head"
        elif not (self._functions and text[0] in "{[" and not is_end and _is_begun_head(text)):
            self._state = "content"
        yield from ()

    def _may_be_call(self, text: str, is_end: bool) -> bool:
        match = _HEAD.match(text)
        if match is not None:
            return match[1] in self._functions
        return False

    def _thinking(self, is_end: bool) -> Iterator[Bit]:
        place = self._buffer.find(_THINK_END)
        if place >= 0:
            thought = self._buffer[:place].rstrip("\n")
            if thought:
                yield Bit("reasoning", thought)
            self._buffer = self._buffer[place + len(_THINK_END) :].lstrip("\n")
            self._state = "start" if self._functions else "content"
            return
        n_held = 0 if is_end else _held(self._buffer, _THINK_END)
        yield from self._take("reasoning", len(self._buffer) - n_held)

    def _content(self, is_end: bool) -> Iterator[Bit]:
        if not self._functions:
            yield from self._flush("content")
            return
        place = self._buffer.find(_OPEN)
        if place >= 0:
            before = self._buffer[:place].rstrip("\n")
            if before.strip():
                yield Bit("content", before)
            self._buffer = self._buffer[place + len(_OPEN) :]
            self._is_tagged = True
            self._state = "head"
            return
        if is_end:
            if self._buffer.strip() or not self.n_calls:
                yield from self._flush("content")
            self._buffer = ""
            return
        # Line breaks before a call belong to it.
        n_sure = len(self._buffer) - _held(self._buffer, _OPEN)
        yield from self._take("content", len(self._buffer[:n_sure].rstrip("\n")))

    def _head(self, is_end: bool) -> Iterator[Bit]:
        match = _HEAD.match(self._buffer)
        if match is not None and match.end() < len(self._buffer):
            self.n_calls += 1
            yield Bit("call", match[1])
            self._buffer = self._buffer[match.end() :]
            self._value = _ValueEnd()
            self._state = "value"
            return
        closed = self._buffer.find(_CLOSE) if self._is_tagged else -1
        if closed >= 0:
            text, self._buffer = self._buffer[:closed], self._buffer[closed + len(_CLOSE) :]
            yield from self._odd_call(text)
        elif is_end or (match is None and len(self._buffer) > _MAX_HEAD):
            text, self._buffer = self._buffer, ""
            yield from self._odd_call(text)

    def _odd_call(self, text: str) -> Iterator[Bit]:
        """A call in another order of keys, or no call at all."""
        self._state = "content"
        try:
            call = json.loads(text)
            name, arguments = call["name"], call.get("arguments", call.get("parameters", {}))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            name = None
        if isinstance(name, str) and name in self._functions:
            self.n_calls += 1
            yield Bit("call", name)
            yield Bit("arguments", json.dumps(arguments, ensure_ascii=False))
        elif text:
            yield Bit("content", f"{_OPEN}{text}" if self._is_tagged else text)
        self._is_tagged = False

    def _arguments(self, is_end: bool) -> Iterator[Bit]:
        assert self._value is not None
        n, is_over = self._value.scan(self._buffer)
        yield from self._take("arguments", n)
        if is_over:
            self._state = "tail"

    def _tail(self, is_end: bool) -> Iterator[Bit]:
        """Skip what closes the call."""
        if self._is_tagged:
            place = self._buffer.find(_CLOSE)
            if place >= 0:
                self._buffer = self._buffer[place + len(_CLOSE) :].lstrip("\n")
                self._is_tagged = False
                self._state = "content"
            elif is_end:
                self._buffer = ""
            return
        # A list of calls goes on with the next one.
        rest = self._buffer.lstrip(" \t\r\n}")
        if rest.startswith(",") and rest[1:].lstrip().startswith("{"):
            self._buffer = rest[1:].lstrip()
            self._state = "head"
        elif is_end or (rest and rest[0] not in ",]"):
            self._buffer = rest.lstrip("] \t\r\n,;")
            self._state = "content"
        yield from ()

    def _flush(self, kind: BitKind) -> Iterator[Bit]:
        yield from self._take(kind, len(self._buffer))

    def _take(self, kind: BitKind, n: int) -> Iterator[Bit]:
        if n > 0:
            text, self._buffer = self._buffer[:n], self._buffer[n:]
            yield Bit(kind, text)


class _ValueEnd:
    """Finds the end of a JSON value that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def scan(self, text: str) -> tuple[int, bool]:
        """Return how much of the text belongs to the value, and whether it ends there."""
        for i, c in enumerate(text):
            if self._in_string:
                self._read_quoted(c)
                is_over = not self._in_string and self._depth == 0
            elif self._depth == 0 and c in "}],":
                return i, True
            else:
                is_over = self._read_plain(c)
            if is_over:
                return i + 1, True
        return len(text), False

    def _read_quoted(self, c: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif c == "\\":
            self._is_escaped = True
        elif c == '"':
            self._in_string = False

    def _read_plain(self, c: str) -> bool:
        """Take a character outside of strings; return whether it closes the value."""
        if c == '"':
            self._in_string = True
        elif c in "{[":
            self._depth += 1
        elif c in "}]":
            self._depth -= 1
            return self._depth == 0
        return False


def _held(text: str, mark: str) -> int:
    """Return how many of the last characters may be the beginning of a mark."""
    for n in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:n]):
            return n
    return 0


def _is_begun_head(text: str) -> bool:
    """Tell whether this may become the head of a call."""
    compact = re.sub(r"\s+", "", text).removeprefix("[")
    for wanted in ('{"name":"', '{"type":"function","name":"'):
        if wanted.startswith(compact):
            return True
        if compact.startswith(wanted):
            rest = compact[len(wanted) :]
            name, quote, after = rest.partition('"')
            if not quote:
                return len(name) <= 64
            return any(key.startswith(after) for key in (',"arguments":', ',"parameters":'))
    return False


def _joined(bits: Iterator[Bit]) -> Iterator[Bit]:
    last: Bit | None = None
    for bit in bits:
        if last is not None and last.kind == bit.kind and bit.kind != "call":
            last = Bit(last.kind, last.text + bit.text)
            continue
        if last is not None:
            yield last
        last = bit
    if last is not None:
        yield last
