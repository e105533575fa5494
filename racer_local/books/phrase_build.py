"""Make a phrase book from tokens. Layer: pure.

Places are sorted by the tokens before them with prefix doubling (Manber and Myers, 1993) on whole
arrays: the first sort compares as many tokens as fit into 64 bits, every further one twice as
many, up to the depth of a match.

A book has a size budget. Where the text does not fit, this goes first, in this order:

1. Runs that are already there three times with the same ``DEPTH`` tokens before them: what
   repeats stays, its further copies say nothing new.
2. Files with less than two bytes of text per token: tables of numbers, hashes, encoded data. They
   are long in tokens and seldom quoted.
3. Files that were changed longest ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from racer_local.books.phrase_book import DEPTH, BookFile, PhraseBook
from racer_local.errors import ConfigError

__all__ = ["DEFAULT_BOOK_BYTES", "SourceText", "build_book", "sort_places"]

DEFAULT_BOOK_BYTES = 64 * 2**20
_ORDER_BYTES = 4
# Copies of a run that are kept, and the shortest run that is worth leaving out.
_N_COPIES = 3
_MIN_RUN = 4 * DEPTH
# Sorting holds some 60 bytes a token: not more than this many budgets are sorted at once.
_MAX_BUDGETS = 2
_DENSE_BYTES_PER_TOKEN = 2.0


@dataclass(frozen=True, slots=True)
class SourceText:
    """One text to be indexed.

    Attributes:
        name: what it is called in reports.
        size_bytes: size of the file.
        changed_ns: when it was last changed.
        tokens: int32 [n].
        is_whole: whether these are all its tokens.
    """

    name: str
    size_bytes: int
    changed_ns: int
    tokens: NDArray[np.int32]
    is_whole: bool = True


def build_book(
    sources: Sequence[SourceText],
    fingerprint: str,
    n_vocab: int,
    max_bytes: int = DEFAULT_BOOK_BYTES,
) -> PhraseBook:
    """Make a book of texts; texts that are equal are stored once.

    Args:
        sources: the texts.
        fingerprint: of the tokenizer.
        n_vocab: tokens of its vocabulary.
        max_bytes: about the size of the saved file and of the memory it takes.

    Raises:
        ConfigError: the budget is below 64 KiB or above 768 MiB.
        ValueError: a token is outside the vocabulary.
    """
    if not 2**16 <= max_bytes <= 768 * 2**20:
        raise ConfigError(
            f"the size of a phrase book is {max_bytes / 2**20:g} MB; it must be from 0.0625 to 768"
        )
    # One more value separates files.
    dtype = np.uint16 if n_vocab < 1 << 16 else np.uint32
    n_most = max_bytes // (np.dtype(dtype).itemsize + _ORDER_BYTES)
    text, files = _join(_choose(sources, _MAX_BUDGETS * n_most), dtype, n_vocab)
    order, ranks = sort_places(text)
    if len(text) > n_most:
        text, files = _drop_copies(text, files, ranks)
        if len(text) > n_most:
            texts = [_source(text, file) for file in files]
            text, files = _join(_choose(texts, n_most), dtype, n_vocab)
        order, _ = sort_places(text)
    return PhraseBook(fingerprint, n_vocab, text, order, files)


def _source(text: NDArray[Any], file: BookFile) -> SourceText:
    # Gaps inside a file become tokens of -1, which _join turns back.
    codes = text[file.start : file.end].astype(np.int64) - 1
    return SourceText(
        file.name, file.size_bytes, file.changed_ns, codes.astype(np.int32), file.is_whole
    )


def _choose(sources: Sequence[SourceText], n_most: int) -> list[SourceText]:
    """Leave out whole texts until the others fit; the order is kept."""

    def worth(source: SourceText) -> tuple[bool, int]:
        is_dense = source.size_bytes < _DENSE_BYTES_PER_TOKEN * len(source.tokens)
        return not is_dense, source.changed_ns

    if sum(len(source.tokens) + 1 for source in sources) <= n_most:
        return list(sources)
    kept: set[int] = set()
    n_left = n_most
    for i in sorted(range(len(sources)), key=lambda i: worth(sources[i]), reverse=True):
        n = len(sources[i].tokens) + 1
        if n <= n_left:
            kept.add(i)
            n_left -= n
    return [source for i, source in enumerate(sources) if i in kept]


def _join(
    sources: Sequence[SourceText], dtype: type[np.unsignedinteger[Any]], n_vocab: int
) -> tuple[NDArray[Any], list[BookFile]]:
    """Lay texts out one after the other; token -1 inside a text separates pieces of it."""
    known: dict[bytes, tuple[int, int]] = {}
    pieces: list[NDArray[Any]] = [np.zeros(1, dtype)]
    files: list[BookFile] = []
    n = 1
    for source in sources:
        tokens = source.tokens
        if len(tokens) and not (tokens.min() >= -1 and tokens.max() < n_vocab):
            raise ValueError(f"{source.name} has a token outside the vocabulary of {n_vocab}")
        codes = (tokens.astype(np.int64) + 1).astype(dtype)
        key = codes.tobytes()
        if key not in known:
            known[key] = n, n + len(codes)
            pieces += codes, np.zeros(1, dtype)
            n += len(codes) + 1
        start, end = known[key]
        files.append(
            BookFile(source.name, source.size_bytes, source.changed_ns, source.is_whole, start, end)
        )
    return np.concatenate(pieces), files


def sort_places(text: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Sort places by the up to ``DEPTH`` tokens that end there, read backwards.

    Args:
        text: uint16 or uint32 [n], 0 between files.

    Returns:
        The places that have a token there and after, int32 [m], sorted; and the rank of every
        place, int32 [n], equal where the last ``DEPTH`` tokens are.
    """
    n = len(text)
    backwards = text[::-1]
    width = text.dtype.itemsize
    depth = 8 // width
    keys = np.zeros(n, np.uint64)
    for i in range(depth):
        keys <<= np.uint64(8 * width)
        keys[: max(n - i, 0)] |= backwards[i:]
    ranks, by_rank = _rank(keys)
    while depth < DEPTH:
        keys = ranks.astype(np.uint64) << np.uint64(32)
        # What lies before the text is less than all ranks, which start at 1.
        keys[: max(n - depth, 0)] |= ranks[depth:].astype(np.uint64)
        ranks, by_rank = _rank(keys)
        depth *= 2
    places = (n - 1 - by_rank).astype(np.int32)
    is_used = np.zeros(n, np.bool_)
    is_used[:-1] = (text[:-1] > 0) & (text[1:] > 0)
    return places[is_used[places]], ranks[::-1].copy()


def _rank(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Number keys from 1 in rising order, equal ones alike; and the order itself."""
    order = np.argsort(keys)
    in_order = keys[order]
    is_new = np.ones(len(keys), np.bool_)
    is_new[1:] = in_order[1:] != in_order[:-1]
    ranks = np.empty(len(keys), np.int32)
    ranks[order] = np.cumsum(is_new, dtype=np.int32)
    return ranks, order


def _drop_copies(
    text: NDArray[Any], files: Sequence[BookFile], ranks: NDArray[np.int32]
) -> tuple[NDArray[Any], list[BookFile]]:
    """Leave out long runs of which enough copies come before."""
    n = len(text)
    order = np.argsort(ranks, kind="stable")
    starts = np.flatnonzero(np.diff(ranks[order], prepend=-1))
    sizes = np.diff(starts, append=n)
    number = np.empty(n, np.int64)
    number[order] = np.arange(n) - np.repeat(starts, sizes)
    is_copy = (number >= _N_COPIES) & (text > 0)
    edges = np.flatnonzero(np.diff(is_copy.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    keep = np.ones(n, np.bool_)
    text = text.copy()
    for first, end in edges[edges[:, 1] - edges[:, 0] >= _MIN_RUN].tolist():
        # What follows the run keeps the context that leads to it; one separator stands for the
        # rest.
        keep[first + 1 : end - DEPTH] = False
        text[first] = 0
    places = np.concatenate([[0], np.cumsum(keep)])
    kept = []
    for file in files:
        start, end = int(places[file.start]), int(places[file.end])
        is_whole = file.is_whole and end - start == file.end - file.start
        kept.append(replace(file, start=start, end=end, is_whole=is_whole))
    return text[keep], kept
