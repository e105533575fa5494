"""Frozen text that a user pointed at, and what followed the places where it goes like now.

Layer: pure. A phrase book holds the tokens of files (or of earlier conversations) and the order
of all its places by the tokens before them, read backwards: a suffix array of the reversed text.
Places with the same last tokens stand side by side there, so one bisection finds the longest
matches of a context, whatever their length up to ``DEPTH``, with what followed each and the file
it is in. A lookup changes nothing and needs no state from one token to the next.

Why no automaton of n-grams: one of a million n-grams up to length 8 covers 0.2 million tokens of
text and takes 48 MB and most of a second to build at every start; with six bytes a token the same
memory covers forty times the text, is ready in a fraction of that time, and says where a match
comes from (``docs/books.md`` has the measurements).

A book is one file of plain arrays (``arrays_file``): nothing in it is ever run.

| array | type and shape | meaning |
| --- | --- | --- |
| version | int32 [] | 1 |
| fingerprint | str [] | of the tokenizer |
| n_vocab | int32 [] | tokens of its vocabulary |
| text | uint16 or uint32 [n] | token id + 1; 0 separates files |
| order | int32 [m] | places with a token before and after, by the tokens up to there, backwards |
| ranges | int64 [f, 2] | places of each file: first, and one past the last |
| marks | int64 [f, 3] | size in bytes and change time in ns of each file; 1 if it is here whole |
| names | uint8 [b] | names of the files in UTF-8, separated by zero bytes |
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from racer_local.errors import ConfigError
from racer_local.speculation.tree import TokenId
from racer_local.storage.arrays_file import read_arrays, write_arrays

__all__ = ["DEPTH", "MAX_BOOK_BYTES", "BookFile", "BookMatch", "PhraseBook"]

# Matches are found and compared up to this many tokens.
DEPTH = 16
# Shorter matches are everywhere in a large book and say little.
_MIN_MATCH = 3
# Occurrences looked at, those with the longest matches.
_MAX_MATCHES = 12
# Books larger than this are not ours, packed or unpacked.
MAX_BOOK_BYTES = 1 << 30
_UINT16, _UINT32 = struct.Struct(">H"), struct.Struct(">I")
_VERSION = 1
_WHAT = "phrase book"
_KINDS = {
    "version": ("i", 0),
    "fingerprint": ("U", 0),
    "n_vocab": ("i", 0),
    "text": ("u", 1),
    "order": ("i", 1),
    "ranges": ("i", 2),
    "marks": ("i", 2),
    "names": ("u", 1),
}


class BookMatch(NamedTuple):
    """One occurrence of a context in a book.

    Attributes:
        length: how many of the last tokens agree, up to ``DEPTH``.
        token: what followed.
        place: where the last token of the context stands in the book.
    """

    length: int
    token: TokenId
    place: int


@dataclass(frozen=True, slots=True)
class BookFile:
    """One file of a book.

    Attributes:
        name: as it was given or found.
        size_bytes: its size when it was read.
        changed_ns: when it had been changed.
        is_whole: whether all of its text is in the book.
        start: its first place in the book.
        end: one past its last.
    """

    name: str
    size_bytes: int
    changed_ns: int
    is_whole: bool
    start: int
    end: int


class PhraseBook:
    """Text and the order of its places; never changes.

    Attributes:
        fingerprint: of the tokenizer that made its tokens.
        n_vocab: all token ids are below this.
        files: what it was made of.
    """

    __slots__ = ("_backwards", "_n", "_places", "_width", "files", "fingerprint", "n_vocab")

    def __init__(
        self,
        fingerprint: str,
        n_vocab: int,
        text: NDArray[Any],
        order: NDArray[np.int32],
        files: Sequence[BookFile],
    ) -> None:
        """Take over what ``phrase_build`` made; see the module for the arrays.

        Raises:
            ValueError: saying which of them contradicts another.
        """
        _check(n_vocab, text, order, files)
        self.fingerprint = fingerprint
        self.n_vocab = n_vocab
        self.files = tuple(files)
        self._width = text.dtype.itemsize
        self._n = len(text)
        # Big-endian and backwards, so that comparing bytes compares contexts; the zeros at the
        # end are compared with what would come before the text.
        big = text[::-1].astype(f">u{self._width}")
        self._backwards = big.tobytes() + bytes(DEPTH * self._width)
        # Where the context that ends at each place begins in these bytes.
        places = ((self._n - 1 - order) * self._width).astype(np.int32)
        # A memory view gives plain integers, several times as fast as an array.
        self._places = memoryview(places)  # type: ignore[arg-type]  # arrays are buffers

    def __len__(self) -> int:
        """Count the tokens, separators included."""
        return self._n

    def text(self) -> NDArray[Any]:
        """Return the text: uint16 or uint32 [n], token id + 1, 0 between files."""
        big = np.frombuffer(self._backwards, f">u{self._width}", self._n)
        return big[::-1].astype(f"u{self._width}")

    def tokens(self, file: BookFile) -> NDArray[np.int32]:
        """Return the tokens of one file, as far as they are in the book."""
        text = self.text()[file.start : file.end].astype(np.int32)
        return text[text > 0] - 1

    def find(self, context: Sequence[TokenId]) -> list[BookMatch]:
        """Find the places with the longest matches of the end of a context.

        Args:
            context: tokens; the last ``DEPTH`` count.

        Returns:
            At most 12 places whose last three tokens or more agree, the longest matches first.
        """
        width, n_vocab = self._width, self.n_vocab
        wanted: list[int] = []
        for token in reversed(context[-DEPTH:]):
            # A token that the book cannot hold ends every match.
            if not 0 <= token < n_vocab:
                break
            wanted.append(token + 1)
        if len(wanted) < _MIN_MATCH:
            return []
        query = struct.pack(f">{len(wanted)}{'H' if width == 2 else 'I'}", *wanted)
        size, backwards = len(query), self._backwards
        middle = bisect_left(self._places, query, key=lambda at: backwards[at : at + size])
        return self._around(middle, query)

    def _around(self, middle: int, query: bytes) -> list[BookMatch]:
        """Collect matches on both sides of where the query would stand, the longest first."""
        backwards, places, width = self._backwards, self._places, self._width
        token_at = (_UINT16 if width == 2 else _UINT32).unpack_from
        last, n_places = self._n - 1, len(places)
        left, right = middle - 1, middle
        found: list[BookMatch] = []
        while len(found) < _MAX_MATCHES:
            length = max(self._length(left, query), self._length(right, query))
            if length < _MIN_MATCH:
                break
            # All that agree as far stand together, on one side or on both.
            same = query[: length * width]
            here: list[int] = []
            while right < n_places and len(here) < _MAX_MATCHES:
                at = places[right]
                if not backwards.startswith(same, at):
                    break
                right += 1
                here.append(at)
            while left >= 0 and len(here) < _MAX_MATCHES:
                at = places[left]
                if not backwards.startswith(same, at):
                    break
                left -= 1
                here.append(at)
            for at in here:
                (code,) = token_at(backwards, at - width)
                found.append(BookMatch(length, code - 1, last - at // width))
        return found[:_MAX_MATCHES]

    def _length(self, index: int, query: bytes) -> int:
        """Count the tokens by which the context of a place in order agrees with a query."""
        if not 0 <= index < len(self._places):
            return 0
        at, size = self._places[index], len(query)
        here = int.from_bytes(self._backwards[at : at + size], "big")
        differing_bits = (here ^ int.from_bytes(query, "big")).bit_length()
        return (8 * size - differing_bits) // (8 * self._width)

    def advance(self, found: Sequence[BookMatch], token: TokenId) -> list[BookMatch]:
        """Follow matches over one more token; those that went on otherwise are left out."""
        backwards, width = self._backwards, self._width
        after = []
        for length, came, place in found:
            if came == token:
                # The token after the next one; past the last one there is none.
                at = (self._n - 3 - place) * width
                code = int.from_bytes(backwards[at : at + width], "big") if at >= 0 else 0
                if code:
                    after.append(BookMatch(min(length + 1, DEPTH), code - 1, place + 1))
        return after

    def file_at(self, place: int) -> BookFile | None:
        """Return the file that a place of the book is in."""
        for file in self.files:
            if file.start <= place < file.end:
                return file
        return None

    def size_bytes(self) -> int:
        """Estimate the memory held."""
        return len(self._backwards) + self._places.nbytes + 400 * len(self.files)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the book; the file appears as a whole or not at all, and is its owner's only.

        Raises:
            ConfigError: if it cannot be written.
        """
        names = "\0".join(file.name for file in self.files).encode("utf-8", "surrogateescape")
        offsets = np.frombuffer(self._places, np.int32)
        marks = [(f.size_bytes, f.changed_ns, int(f.is_whole)) for f in self.files]
        write_arrays(
            path,
            _WHAT,
            {
                "version": np.array(_VERSION, np.int32),
                "fingerprint": np.array(self.fingerprint),
                "n_vocab": np.array(self.n_vocab, np.int32),
                "text": self.text(),
                "order": (self._n - 1 - offsets // self._width).astype(np.int32),
                "ranges": np.array([(f.start, f.end) for f in self.files], np.int64).reshape(-1, 2),
                "marks": np.array(marks, np.int64).reshape(-1, 3),
                "names": np.frombuffer(names, np.uint8),
            },
            compress=False,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], fingerprint: str | None = None) -> PhraseBook:
        """Read what ``save`` wrote.

        Args:
            path: the file.
            fingerprint: of the tokenizer in use; None takes a book of any.

        Raises:
            ConfigError: if the file is missing, too large, damaged, of another version, or of
                another tokenizer.
        """
        arrays = read_arrays(path, _WHAT, _KINDS, MAX_BOOK_BYTES)
        name = os.fspath(path)
        version = int(arrays["version"])
        if version != _VERSION:
            raise ConfigError(
                f"{name} is a phrase book of version {version}, not {_VERSION}; make it again "
                "with racer-local index"
            )
        found = str(arrays["fingerprint"])
        if fingerprint is not None and found != fingerprint:
            raise ConfigError(
                f"the phrase book {name} was made with the tokenizer of another model; make one "
                "for this model with racer-local index"
            )
        try:
            return cls(
                found,
                int(arrays["n_vocab"]),
                arrays["text"],
                arrays["order"].astype(np.int32, copy=False),
                _files(arrays),
            )
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"{name} cannot be read as a {_WHAT}: {error}") from error


def _files(arrays: dict[str, NDArray[Any]]) -> list[BookFile]:
    ranges, marks = arrays["ranges"], arrays["marks"]
    encoded = arrays["names"].tobytes()
    names = encoded.decode("utf-8", "surrogateescape").split("\0") if len(ranges) else []
    if ranges.shape != (len(names), 2) or marks.shape != (len(names), 3):
        raise ValueError("its file table has columns of different lengths")
    return [
        BookFile(name, size, changed, bool(is_whole), start, end)
        for name, (start, end), (size, changed, is_whole) in zip(
            names, ranges.tolist(), marks.tolist(), strict=True
        )
    ]


def _check(
    n_vocab: int, text: NDArray[Any], order: NDArray[np.int32], files: Sequence[BookFile]
) -> None:
    if text.dtype.itemsize not in (2, 4) or not 0 < n_vocab < 1 << (8 * text.dtype.itemsize):
        raise ValueError(f"a vocabulary of {n_vocab} tokens does not fit {text.dtype}")
    if len(text) * text.dtype.itemsize >= 1 << 31:
        raise ValueError("its text is too long")
    if len(text) and int(text.max()) > n_vocab:
        raise ValueError(f"it has token ids beyond its vocabulary of {n_vocab}")
    if len(order):
        if order.min() < 0 or int(order.max()) >= len(text) - 1:
            raise ValueError("it names places outside its text")
        # One look at a small array in the order of the places, which is far from that of memory.
        goes_on = (text[:-1] != 0) & (text[1:] != 0)
        if not goes_on[order].all():
            raise ValueError("it names places where nothing follows")
    for file in files:
        if not 0 <= file.start <= file.end <= len(text):
            raise ValueError("it has files outside its text")
