"""Books of files: what is read, what is taken from the book before, what the report says."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from racer_local.books.indexing import IndexReport, index_files
from racer_local.books.phrase_book import PhraseBook
from racer_local.books.text_files import find_files


class Bytes:
    """A tokenizer of bytes that counts what it is given."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def __call__(self, text: str) -> NDArray[np.int32]:
        self.pieces.append(text)
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def index(root: Path, tokenize: Bytes, **options: object) -> tuple[PhraseBook, IndexReport]:
    return index_files(find_files([root], 10**6), tokenize, "bytes", 256, **options)  # type: ignore[arg-type]


def said_after(book: PhraseBook, text: str) -> str:
    return "".join(sorted({chr(match.token) for match in book.find(list(text.encode()))}))


def test_the_text_of_all_files_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello world", "utf-8")
    (tmp_path / "b.txt").write_text("hello there", "utf-8")
    (tmp_path / "c.bin").write_bytes(b"hello\0zzz")
    book, report = index(tmp_path, Bytes())
    assert said_after(book, "hello ") == "tw"
    assert said_after(book, "hello") == " "
    assert (report.n_files, report.n_unchanged, report.n_bytes_read) == (2, 0, 22)
    assert report.left_out == {"binary": 1}
    assert [Path(file.name).name for file in book.files] == ["a.txt", "b.txt"]


def test_only_changed_files_are_read_again(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(f"this is the file {name} as it was", "utf-8")
    first, _ = index(tmp_path, Bytes())
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_text("this is the file b as it is now", "utf-8")
    (tmp_path / "d").write_text("this is the file d", "utf-8")
    # The same size, but changed later.
    (tmp_path / "c").write_text("this is the file c as it is!", "utf-8")
    os.utime(tmp_path / "c", ns=(0, first.files[2].changed_ns))
    (tmp_path / "c").write_text("this is the file c as it was", "utf-8")
    os.utime(tmp_path / "c", ns=(0, first.files[2].changed_ns))
    tokenize = Bytes()
    second, report = index(tmp_path, tokenize, before=first)
    assert sorted(text[17] for text in tokenize.pieces) == ["b", "d"]
    assert (report.n_files, report.n_unchanged) == (3, 1)
    anew, _ = index(tmp_path, Bytes())
    assert second.text().tolist() == anew.text().tolist()
    assert second.files == anew.files
    assert said_after(second, "the file ") == "bcd"


def test_long_files_are_tokenized_in_pieces_without_losing_any(tmp_path: Path) -> None:
    lines = "".join(f"line number {i}\n" for i in range(20_000))
    (tmp_path / "lines").write_text(lines, "utf-8")
    (tmp_path / "one line").write_text("ab" * 70_000, "utf-8")
    tokenize, told = Bytes(), []
    book, _ = index(tmp_path, tokenize, on_progress=lambda done, total: told.append((done, total)))
    assert max(map(len, tokenize.pieces)) <= 1 << 16
    assert bytes(book.tokens(book.files[0]).astype(np.uint8)).decode() == lines
    assert len(told) == len(tokenize.pieces) > 5
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1]


def test_a_stop_while_reading_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text", "utf-8")

    def stop(done: float, total: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index(tmp_path, Bytes(), on_progress=stop)


def test_an_empty_folder_makes_an_empty_book(tmp_path: Path) -> None:
    book, report = index(tmp_path, Bytes())
    assert (book.files, report.n_files, book.find([1, 2, 3])) == ((), 0, [])
