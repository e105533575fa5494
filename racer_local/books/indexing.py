"""Make a phrase book of files, or bring one up to date. Layer: files.

Files that have not changed since the book was made are taken from it and not read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from racer_local.books.phrase_book import BookFile, PhraseBook
from racer_local.books.phrase_build import DEFAULT_BOOK_BYTES, SourceText, build_book
from racer_local.books.text_files import BINARY, UNREADABLE, Found, TextFile, decode_text

__all__ = ["IndexReport", "Tokenize", "index_files"]

# From text to token ids, int32 [n].
Tokenize: TypeAlias = Callable[[str], NDArray[np.int32]]

# Long texts are tokenized piece by piece: progress can be shown, Ctrl-C works, and no tokenizer
# has to hold much. At the cut, before a line, hardly any tokenizer joins what is cut.
_PIECE = 1 << 16


@dataclass(slots=True)
class IndexReport:
    """What an indexing run did.

    Attributes:
        n_files: files in the book.
        n_unchanged: of these, taken from the earlier book.
        n_bytes_read: bytes of the others.
        n_cut: files of which the budget left out some.
        n_dropped: files that the budget left out.
        left_out: counts of files that are no part of it, by reason.
    """

    n_files: int = 0
    n_unchanged: int = 0
    n_bytes_read: int = 0
    n_cut: int = 0
    n_dropped: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def index_files(
    found: Found,
    tokenize: Tokenize,
    fingerprint: str,
    n_vocab: int,
    *,
    before: PhraseBook | None = None,
    max_bytes: int = DEFAULT_BOOK_BYTES,
    on_progress: Callable[[float, float], None] | None = None,
) -> tuple[PhraseBook, IndexReport]:
    """Make a book of the files that were found.

    Args:
        found: the files.
        tokenize: the model's tokenizer, without added tokens.
        fingerprint: of the tokenizer.
        n_vocab: tokens of its vocabulary.
        before: the book to bring up to date, of the same tokenizer.
        max_bytes: size budget.
        on_progress: called with (bytes done, bytes in all); may raise to stop.

    Raises:
        ConfigError: the budget is out of range.
    """
    report = IndexReport(left_out=Counter(found.left_out))
    known: dict[str, BookFile] = {}
    text: NDArray[np.integer] = np.zeros(0, np.int32)
    if before is not None:
        known = {file.name: file for file in before.files if file.is_whole}
        text = before.text()
    sources: list[SourceText] = []
    n_all = sum(file.size_bytes for file in found.files)
    n_done = 0
    for file in found.files:
        old = known.get(file.name)
        marks = file.size_bytes, file.changed_ns
        if old is not None and marks == (old.size_bytes, old.changed_ns):
            tokens = text[old.start : old.end].astype(np.int32) - 1
            report.n_unchanged += 1
        else:
            read = _read(file, report)
            if read is None:
                n_done += file.size_bytes
                continue
            report.n_bytes_read += file.size_bytes
            parts = []
            for piece in _pieces(read):
                parts.append(tokenize(piece))
                n_done += len(piece)
                if on_progress is not None:
                    on_progress(min(n_done, n_all), n_all)
            tokens = np.concatenate(parts) if parts else np.zeros(0, np.int32)
            n_done -= len(read)
        n_done += file.size_bytes
        if len(tokens):
            sources.append(SourceText(file.name, *marks, tokens))
    book = build_book(sources, fingerprint, n_vocab, max_bytes)
    report.n_files = len(book.files)
    report.n_cut = sum(not file.is_whole for file in book.files)
    report.n_dropped = len(sources) - len(book.files)
    return book, report


def _read(file: TextFile, report: IndexReport) -> str | None:
    try:
        content = Path(file.path).read_bytes()
    except OSError:
        report.left_out[UNREADABLE] += 1
        return None
    text = decode_text(content)
    if text is None:
        report.left_out[BINARY] += 1
    return text


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _PIECE:
        cut = text.rfind("\n", start, start + _PIECE)
        end = cut if cut > start else start + _PIECE
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]
