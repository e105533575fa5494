"""Where phrase books are kept: named files in the user's data folder. Layer: files.

A chat memory is a book too, one per tokenizer, kept only when asked for; it holds the newest
conversations, and ``forget_memory`` removes it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from racer_local.books.book_set import BookSet
from racer_local.books.phrase_book import PhraseBook
from racer_local.books.phrase_build import SourceText, build_book
from racer_local.errors import ConfigError
from racer_local.speculation.tree import TokenId
from racer_local.storage.files import data_folder
from racer_local.storage.locks import file_lock

__all__ = [
    "book_path",
    "forget_memory",
    "load_memory",
    "load_shelf",
    "memory_path",
    "remember",
    "unused_notices",
]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_SUFFIX = ".npz"
# Some 250,000 tokens, the text of a few hundred answers.
_MEMORY_BYTES = 3 * 2**19
# Of one conversation the end is kept, so that there is room for others.
_MAX_CONVERSATION = 100_000


def _folder(kind: str) -> Path:
    return data_folder() / kind


def book_path(name: str) -> Path:
    """Return the file of a book: a name is looked up in the data folder, a path is taken as it is.

    Raises:
        ConfigError: it is neither a name nor the path of an ``.npz`` file.
    """
    if name.endswith(_SUFFIX):
        return Path(name)
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name for a phrase book: use letters, digits, '.', '_' and '-', or "
            "give the path of an .npz file"
        )
    return _folder("books") / f"{name}{_SUFFIX}"


def load_shelf(names: Iterable[str], fingerprint: str, *, with_memory: bool = False) -> BookSet:
    """Load books for a model; one that is named twice is loaded once.

    Args:
        names: names or paths.
        fingerprint: of the model's tokenizer.
        with_memory: draft from earlier conversations too, as far as they were remembered.

    Raises:
        ConfigError: one is missing, damaged, or of another tokenizer.
    """
    paths = dict.fromkeys(book_path(name) for name in names)
    books = []
    for path in paths:
        if not path.exists():
            raise ConfigError(
                f"there is no phrase book {path}; make one with racer-local index PATH -o NAME"
            )
        books.append(PhraseBook.load(path, fingerprint))
    if with_memory:
        memory = load_memory(fingerprint)
        if memory is not None:
            books.append(memory)
    return BookSet(books)


def unused_notices(shelf: BookSet, mode: str) -> list[str]:
    """Say it where a draft mode does not look into the books that were given."""
    if not shelf.books or mode == "auto":
        return []
    return [f"phrase books and remembered texts are used by draft mode auto only, not by {mode}"]


# --- chat memory -----------------------------------------------------------------------------


def memory_path(fingerprint: str) -> Path:
    """Return the file that holds the conversations with models of this tokenizer."""
    return _folder("memory") / f"{fingerprint[:32]}{_SUFFIX}"


def _memory_lock() -> AbstractContextManager[None]:
    """Return what is held from reading the memory to writing it; beside its folder, not in it."""
    return file_lock(_folder("memory.lock"))


def load_memory(fingerprint: str) -> PhraseBook | None:
    """Return what was remembered; None where nothing was, or nothing that can be used.

    Never raises: a damaged file costs speed, not the answer.
    """
    path = memory_path(fingerprint)
    try:
        return PhraseBook.load(path, fingerprint) if path.is_file() else None
    except (OSError, ConfigError) as error:
        logger.warning("the chat memory is not used: %s", error)
        return None


def remember(tokens: Sequence[TokenId], fingerprint: str, n_vocab: int) -> Path:
    """Add a conversation to the chat memory; the oldest ones make room.

    Args:
        tokens: prompt and answer, or a whole conversation, once it is over; of a very long one
            the end is kept.
        fingerprint: of the tokenizer.
        n_vocab: tokens of its vocabulary.

    Returns:
        The file.

    Raises:
        ConfigError: it cannot be written.
    """
    path = memory_path(fingerprint)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _memory_lock():
            before = load_memory(fingerprint)
            sources = [] if before is None else _conversations(before, n_vocab)
            now = time.time_ns()
            name = time.strftime("conversation of %Y-%m-%d %H:%M:%S", time.localtime(now / 1e9))
            kept = np.array(tokens[-_MAX_CONVERSATION:], np.int32)
            sources.append(SourceText(name, 4 * len(kept), now, kept))
            build_book(sources, fingerprint, n_vocab, _MEMORY_BYTES).save(path)
    except OSError as error:
        raise ConfigError(f"cannot write the chat memory {path}: {error.strerror}") from error
    return path


def _conversations(book: PhraseBook, n_vocab: int) -> list[SourceText]:
    text = book.text().astype(np.int32) - 1
    return [
        SourceText(f.name, f.size_bytes, f.changed_ns, text[f.start : f.end], f.is_whole)
        for f in book.files
        if book.n_vocab <= n_vocab
    ]


def forget_memory() -> list[Path]:
    """Remove all that was remembered, of every model; returns the files that are gone.

    Raises:
        ConfigError: one cannot be removed.
    """
    folder = _folder("memory")
    if not folder.is_dir():
        return []
    gone = []
    try:
        # Whoever is remembering meanwhile holds the old text, and would write it again.
        with _memory_lock():
            for path in sorted(folder.iterdir()):
                path.unlink()
                if path.suffix == _SUFFIX:
                    gone.append(path)
    except OSError as error:
        raise ConfigError(f"cannot remove {error.filename}: {error.strerror}") from error
    return gone
