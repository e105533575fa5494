"""Where books are kept, and the memory of conversations: opt-in, bounded, private, removable."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from racer_local.books import store
from racer_local.books.phrase_book import PhraseBook
from racer_local.books.phrase_build import SourceText, build_book
from racer_local.books.store import (
    book_path,
    forget_memory,
    load_memory,
    load_shelf,
    memory_path,
    remember,
)
from racer_local.errors import ConfigError


def book(mark: str = "tok") -> PhraseBook:
    return build_book([SourceText("f", 9, 1, np.array([1, 2, 3, 4], np.int32))], mark, 100)


def test_a_name_is_a_file_in_the_data_folder_and_a_path_is_itself(isolated_home: Path) -> None:
    path = book_path("my-project")
    assert path.is_relative_to(isolated_home)
    assert path.name == "my-project.npz"
    assert book_path("sub/x.npz") == Path("sub/x.npz")
    for name in ("", "..", "a/b", "a b", ".hidden", "x" * 65, "a\0b"):
        with pytest.raises(ConfigError, match="no name for a phrase book"):
            book_path(name)


def test_books_are_loaded_once_each_and_only_for_their_tokenizer(tmp_path: Path) -> None:
    book().save(book_path("one"))
    book().save(tmp_path / "new" / "two.npz")
    shelf = load_shelf(["one", "one", str(tmp_path / "new" / "two.npz")], "tok")
    assert len(shelf.books) == 2
    assert shelf.size_bytes() > 0
    assert load_shelf([], "tok").books == ()
    with pytest.raises(ConfigError, match="tokenizer of another model"):
        load_shelf(["one"], "other")
    with pytest.raises(ConfigError, match="racer-local index PATH -o NAME"):
        load_shelf(["none"], "tok")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot write the phrase book"):
        book().save(tmp_path / "file" / "x.npz")


def test_conversations_are_remembered_until_forgotten() -> None:
    assert load_memory("tok") is None
    remember([1, 2, 3, 4], "tok", 100)
    path = remember([5, 1, 2, 3, 9], "tok", 100)
    memory = load_memory("tok")
    assert memory is not None
    assert {match.token for match in memory.find([1, 2, 3])} == {4, 9}
    assert all(file.name.startswith("conversation of 20") for file in memory.files)
    assert load_memory("other") is None
    assert load_shelf([], "tok").books == ()
    assert len(load_shelf([], "tok", with_memory=True).books) == 1
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
    book().save(book_path("kept"))
    assert forget_memory() == [path]
    assert list(path.parent.iterdir()) == []
    assert load_memory("tok") is None
    assert forget_memory() == []
    assert book_path("kept").exists()


def test_the_memory_is_bounded_and_keeps_the_latest() -> None:
    chance = np.random.default_rng(0)
    for _ in range(8):
        latest = chance.integers(0, 50_000, 60_000).tolist()
        path = remember(latest, "tok", 50_000)
    memory = load_memory("tok")
    assert memory is not None
    assert path.stat().st_size < 2 * 2**20
    assert 2 <= len(memory.files) < 8
    assert memory.find(latest[:16])[0].length == 16
    remember(list(range(300_000)), "tok", 300_000)
    memory = load_memory("tok")
    assert memory is not None
    assert memory.find(range(299_000, 299_016))[0].token == 299_016


def test_a_damaged_memory_is_left_aside_and_written_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = memory_path("tok")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING):
        assert load_memory("tok") is None
    assert "chat memory is not used" in caplog.text
    remember([1, 2, 3, 4], "tok", 100)
    assert load_memory("tok") is not None


def test_a_memory_that_cannot_be_written_is_told(isolated_home: Path) -> None:
    folder = memory_path("tok").parent
    folder.parent.mkdir(parents=True)
    folder.write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot write the chat memory"):
        remember([1, 2, 3, 4], "tok", 100)


def test_what_is_forgotten_while_something_is_remembered_stays_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remember([1, 2, 3, 4], "tok", 100)
    has_read, may_write = threading.Event(), threading.Event()
    lock, load = store.file_lock, store.load_memory

    def load_and_wait(mark: str) -> PhraseBook | None:
        found = load(mark)
        has_read.set()
        may_write.wait()
        return found

    def lock_of_another(path: Path) -> AbstractContextManager[None]:
        if has_read.is_set():
            may_write.set()
        return lock(path)

    monkeypatch.setattr(store, "load_memory", load_and_wait)
    monkeypatch.setattr(store, "file_lock", lock_of_another)
    remembering = threading.Thread(target=lambda: remember([5, 6, 7, 8], "tok", 100))
    remembering.start()
    has_read.wait()
    # Whoever forgets without waiting for the other must not leave it waiting for ever.
    rescue = threading.Timer(5, may_write.set)
    rescue.start()
    assert forget_memory() == [memory_path("tok")]
    remembering.join()
    rescue.cancel()
    assert load("tok") is None
