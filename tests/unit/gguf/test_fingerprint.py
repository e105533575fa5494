"""Fingerprints tell models apart; a row memory is found again, and a damaged one is ignored."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.drafting.auto.row_memory_store import (
    load_row_memory,
    row_memory_path,
    save_row_memory,
)
from racer_local.errors import ConfigError, ModelLoadError
from racer_local.gguf.fingerprint import fingerprint, tokenizer_fingerprint

Tiny = Callable[[str], Path]


def memory_of(model: Path) -> RowMemory:
    memory = RowMemory(fingerprint(model))
    ids = np.arange(24, dtype=np.int32).reshape(3, 8)
    memory.fill(np.array([1, 2, 3], np.int32), ids, np.full((3, 8), 0.1, np.float32))
    return memory


def test_a_copy_has_the_same_fingerprint_and_another_model_another(
    tiny_path: Tiny, tmp_path: Path
) -> None:
    model = tiny_path("llama")
    copy = tmp_path / "elsewhere.gguf"
    shutil.copy(model, copy)
    mark = fingerprint(model)
    assert fingerprint(copy) == mark
    assert fingerprint(tiny_path("mamba")) != mark
    assert len(mark) == 64
    assert set(mark) <= set("0123456789abcdef")


def test_a_file_of_another_size_is_another_model(tiny_path: Tiny, tmp_path: Path) -> None:
    longer = tmp_path / "longer.gguf"
    longer.write_bytes(tiny_path("llama").read_bytes() + b"\0" * 64)
    assert fingerprint(longer) != fingerprint(tiny_path("llama"))


def test_what_is_no_model_has_no_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError):
        fingerprint(tmp_path / "missing.gguf")


def test_a_row_memory_is_found_again(tiny_path: Tiny) -> None:
    model = tiny_path("llama")
    assert load_row_memory(model) is None
    path = save_row_memory(memory_of(model))
    found = load_row_memory(model)
    assert found is not None
    assert found.one(2) == memory_of(model).one(2)
    assert path.parent.name == "row-memory"
    assert load_row_memory(tiny_path("mamba")) is None


def test_a_damaged_row_memory_is_ignored_and_logged(
    tiny_path: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_path("llama")
    path = save_row_memory(memory_of(model))
    path.write_bytes(path.read_bytes()[:-200])
    with caplog.at_level(logging.WARNING):
        assert load_row_memory(model) is None
    assert "not used" in caplog.text


def test_rows_of_another_model_under_this_name_are_ignored(tiny_path: Tiny) -> None:
    path = save_row_memory(memory_of(tiny_path("mamba")))
    path.rename(row_memory_path(fingerprint(tiny_path("llama"))))
    assert load_row_memory(tiny_path("llama")) is None


def test_a_missing_model_is_no_error(tiny_path: Tiny, tmp_path: Path) -> None:
    save_row_memory(memory_of(tiny_path("llama")))
    assert load_row_memory(tmp_path / "missing.gguf") is None


def test_a_folder_that_cannot_be_made_is_named(
    tiny_path: Tiny, isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = memory_of(tiny_path("llama"))
    blocked = isolated_home / "file"
    blocked.write_text("")
    monkeypatch.setattr(
        "racer_local.drafting.auto.row_memory_store._folder", lambda: blocked / "row-memory"
    )
    with pytest.raises(ConfigError, match="row-memory"):
        save_row_memory(memory)


def test_the_tokenizer_has_a_fingerprint_of_its_own(tiny_path: Tiny, tmp_path: Path) -> None:
    model = tiny_path("llama")
    mark = tokenizer_fingerprint(model)
    assert len(mark) == 64
    assert mark != fingerprint(model)
    # Another model with the same vocabulary.
    assert tokenizer_fingerprint(tiny_path("mamba")) == mark
    assert fingerprint(tiny_path("mamba")) != fingerprint(model)
    content = bytearray(model.read_bytes())
    place = content.index(b"tokenizer.ggml.tokens") + 21 + 4 + 4 + 8 + 8
    content[place] ^= 1
    other = tmp_path / "other.gguf"
    other.write_bytes(content)
    assert tokenizer_fingerprint(other) != mark
    with pytest.raises(ModelLoadError):
        tokenizer_fingerprint(tmp_path / "missing.gguf")
