"""Phrase books: what is found, what is kept when there is too much, which files are refused."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from racer_local.books import phrase_book
from racer_local.books.phrase_book import PhraseBook
from racer_local.books.phrase_build import SourceText, build_book
from racer_local.errors import ConfigError


def source(name: str, tokens: Any, changed: int = 0, bytes_per_token: int = 4) -> SourceText:
    tokens = np.array(tokens, np.int32)
    return SourceText(name, bytes_per_token * len(tokens), changed, tokens)


def book_of(*texts: list[int], n_vocab: int = 1000) -> PhraseBook:
    return build_book([source(f"{i}.txt", text) for i, text in enumerate(texts)], "tok", n_vocab)


def test_longer_matches_come_first_and_say_what_followed_and_where() -> None:
    book = book_of([1, 2, 3, 4, 5, 6], [9, 2, 3, 4, 7])
    found = book.find([1, 2, 3, 4])
    assert [(m.length, m.token) for m in found] == [(4, 5), (3, 7)]
    assert [book.file_at(m.place).name for m in found] == ["0.txt", "1.txt"]  # type: ignore[union-attr]
    assert [(m.length, m.token) for m in book.advance(found, 5)] == [(5, 6)]
    assert book.advance(found, 7) == []
    assert book.find([3, 4]) == []
    assert book.find([]) == []


def test_no_match_crosses_from_one_file_into_the_next() -> None:
    book = book_of([1, 2, 3], [4, 5, 6])
    assert book.find([1, 2, 3]) == []
    assert book.find([2, 3, 4, 5]) == []
    assert [m.token for m in book_of([1, 2, 3, 4, 5, 6]).find([1, 2, 3])] == [4]


def test_tokens_that_the_vocabulary_has_not_end_a_match() -> None:
    book = book_of([1, 2, 3, 4])
    for odd in (-1, 1000, 2**40):
        assert [(m.length, m.token) for m in book.find([odd, 1, 2, 3])] == [(3, 4)]
        assert book.find([1, 2, 3, odd]) == []


def test_equal_files_are_stored_once_and_both_stay_known() -> None:
    text = list(range(100))
    book = book_of(text, text, [5])
    assert len(book) < 120
    assert [file.name for file in book.files] == ["0.txt", "1.txt", "2.txt"]
    assert book.tokens(book.files[1]).tolist() == text
    assert len(book.find([1, 2, 3])) == 1


def test_a_vocabulary_of_any_size_fits() -> None:
    for n_vocab in (2, 65_535, 65_536, 262_144):
        last = n_vocab - 1
        book = book_of([0, last, last, 0, last], n_vocab=n_vocab)
        assert [m.token for m in book.find([0, last, last])] == [0]
        with pytest.raises(ValueError, match="outside the vocabulary"):
            book_of([n_vocab], n_vocab=n_vocab)


def test_of_text_that_does_not_fit_the_copies_go_first() -> None:
    chance = np.random.default_rng(0)
    shared = chance.integers(0, 1000, 2000)
    texts = [np.concatenate([chance.integers(0, 1000, 100), shared]) for _ in range(8)]
    whole = build_book([source(str(i), t) for i, t in enumerate(texts)], "tok", 1000)
    small = build_book([source(str(i), t) for i, t in enumerate(texts)], "tok", 1000, 2**16)
    assert len(whole) > 16_000
    assert 6000 < len(small) <= 2**16 // 6
    assert [file.is_whole for file in small.files] == [True] * 3 + [False] * 5
    # All that is told apart by its context is still there, and of the rest three copies.
    for text in texts:
        context = text[90:100].tolist()
        assert small.find(context)[0].token == text[100]
    assert len(small.find(shared[500:516].tolist())) == 3


def test_of_text_that_does_not_fit_dense_and_old_files_go_next() -> None:
    chance = np.random.default_rng(0)
    files = [
        source("new", chance.integers(0, 1000, 5000), changed=9),
        source("numbers", chance.integers(0, 1000, 5000), changed=8, bytes_per_token=1),
        source("old", chance.integers(0, 1000, 5000), changed=1),
        source("middle", chance.integers(0, 1000, 5000), changed=5),
    ]
    assert [f.name for f in build_book(files, "tok", 1000, 2**16).files] == ["new", "middle"]
    kept = build_book(files, "tok", 1000, 100 * 2**10).files
    assert [f.name for f in kept] == ["new", "old", "middle"]
    for budget in (1000, 2**40):
        with pytest.raises(ConfigError, match="size of a phrase book"):
            build_book(files, "tok", 1000, budget)


def test_a_file_gives_back_what_was_saved_and_is_the_owners_only(tmp_path: Path) -> None:
    texts = [[1, 2, 3, 4], [], [7, 1, 2, 3, 9]]
    names = ["häuser/ä.py", "leer", os.fsdecode(b"\xff.txt")]
    for n_vocab in (1000, 100_000):
        book = build_book(
            [source(n, t, changed=5) for n, t in zip(names, texts, strict=True)], "tok", n_vocab
        )
        path = tmp_path / f"{n_vocab}.npz"
        book.save(path)
        again = PhraseBook.load(path, "tok")
        assert again.files == book.files
        assert again.find([1, 2, 3]) == book.find([1, 2, 3])
        assert again.size_bytes() == book.size_bytes()
        if os.name == "posix":
            assert path.stat().st_mode & 0o777 == 0o600
    build_book([], "tok", 10).save(tmp_path / "empty.npz")
    empty = PhraseBook.load(tmp_path / "empty.npz")
    assert (empty.files, empty.find([1, 2, 3])) == ((), [])


def test_a_book_of_another_tokenizer_or_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "book.npz"
    book_of([1, 2, 3]).save(path)
    assert PhraseBook.load(path).fingerprint == "tok"
    with pytest.raises(ConfigError, match=r"tokenizer of another model.*racer-local index"):
        PhraseBook.load(path, "other")
    with np.load(path) as content:
        arrays = dict(content)
    np.savez(path, **{**arrays, "version": np.int32(2)})
    with pytest.raises(ConfigError, match="version 2, not 1"):
        PhraseBook.load(path)
    with pytest.raises(ConfigError, match="there is no phrase book"):
        PhraseBook.load(tmp_path / "none.npz")


def test_a_file_that_claims_much_or_hides_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, good = tmp_path / "book.npz", tmp_path / "good.npz"
    book_of([1, 2, 3]).save(good)
    with np.load(good) as content:
        arrays = dict(content)

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    trap = np.array([Trap()], object)
    np.savez(path, **{**arrays, "names": trap}, allow_pickle=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Python objects"):
        PhraseBook.load(path)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ConfigError, match="cannot be read"):
        PhraseBook.load(path)
    assert not (tmp_path / "ran").exists()

    header = b"\x93NUMPY\x01\x00\x76\x00" + (
        b"{'descr': '<u2', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(117) + b"\n"
    )
    with zipfile.ZipFile(good) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for odd, message in (
        (header, "not what it claims"),
        (header.replace(b"1099511627776,", b"-1,           "), "not what it claims"),
        (b"\x93NUMPY\x03\x00" + header[8:], "unknown format"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for name, member in {**members, "text.npy": odd}.items():
                archive.writestr(name, member)
        with pytest.raises(ConfigError, match=message):
            PhraseBook.load(path)
    monkeypatch.setattr(phrase_book, "MAX_BOOK_BYTES", 2**20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("version.npy", bytes(2**20 + 1))
    assert path.stat().st_size < 2**11
    with pytest.raises(ConfigError, match="arrays are larger"):
        PhraseBook.load(path)
    path.write_bytes(bytes(2**20 + 1))
    with pytest.raises(ConfigError, match="it is larger than"):
        PhraseBook.load(path)
