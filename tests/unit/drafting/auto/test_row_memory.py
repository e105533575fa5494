"""Row memory: what it keeps, and which files it refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.errors import ConfigError


def filled(*texts: list[int], max_rows: int = 1000, width: int = 8) -> RowMemory:
    memory = RowMemory("model-a", max_rows)
    for text in texts:
        tokens = np.array(text, np.int32)
        ids = (tokens[:, None] * 100 + np.arange(width, dtype=np.int32)).astype(np.int32)
        ids[:, -1] = np.arange(len(text))
        memory.fill(tokens, ids, np.full(ids.shape, 0.125, np.float32))
    return memory


def test_rows_are_found_by_two_tokens_and_by_one() -> None:
    memory = filled([1, 2, 3, 1, 2])
    row = memory.two(1, 2)
    assert row is not None
    assert row[0] == [200, 201, 202, 203, 204, 205, 206, 4]
    assert row[1] == [0.125] * 8
    one = memory.one(1)
    assert one is not None
    assert one[0][-1] == 3
    assert memory.two(2, 1) is None
    assert memory.one(9) is None
    assert memory.two(-1, 3) == memory.one(3)
    assert len(memory) == 3 + 3


def test_the_latest_text_wins_and_narrow_rows_are_padded() -> None:
    memory = filled([1, 2], [0, 1, 2])
    row = memory.two(1, 2)
    assert row is not None
    assert row[0][-1] == 2
    narrow = filled([4, 5], width=2)
    row = narrow.one(5)
    assert row is not None
    assert row[1] == [0.125, 0.125, 0, 0, 0, 0, 0, 0]
    memory.fill(np.zeros(0, np.int32), np.zeros((0, 8), np.int32), np.zeros((0, 8), np.float32))
    with pytest.raises(ValueError, match="2 tokens with rows"):
        memory.fill(np.array([1, 2], np.int32), np.zeros((1, 8), np.int32), np.zeros((1, 8)))


def test_the_most_frequent_rows_stay_when_there_are_too_many() -> None:
    memory = filled([1, 2] * 5, list(range(100, 140)), max_rows=10)
    assert len(memory) == 10
    assert memory.one(1) is not None
    assert memory.two(1, 2) is not None
    size = memory.size_bytes()
    for start in range(200, 2000, 50):
        filled_text = np.arange(start, start + 50, dtype=np.int32)
        ids = np.zeros((50, 8), np.int32)
        memory.fill(filled_text, ids, np.zeros((50, 8), np.float32))
    assert memory.size_bytes() == size
    assert memory.two(1, 2) is not None
    with pytest.raises(ConfigError, match="at least 1"):
        RowMemory("x", 0)


def test_a_file_gives_back_what_was_saved_and_is_the_owners_only(tmp_path: Path) -> None:
    memory, path = filled([1, 2, 3, 1, 2, 9]), tmp_path / "rows.npz"
    memory.save(path)
    again = RowMemory.load(path, "model-a")
    assert len(again) == len(memory)
    for before, token in ((1, 2), (2, 3), (2, 9)):
        assert again.two(before, token) == memory.two(before, token)
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["rows.npz"]
    memory.save(path)
    assert len(RowMemory.load(path, None, max_rows=2)) == 2


def test_rows_of_another_model_are_refused(tmp_path: Path) -> None:
    filled([1, 2]).save(tmp_path / "rows.npz")
    with pytest.raises(ConfigError, match="of the model 'model-a', not of 'model-b'"):
        RowMemory.load(tmp_path / "rows.npz", "model-b")


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot write"):
        filled([1]).save(tmp_path / "file" / "rows.npz")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        filled([1]).save(tmp_path / "folder")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


GOOD: dict[str, Any] = {
    "version": np.int32(1),
    "fingerprint": np.array("m"),
    "keys": np.array([1, 5], np.int64),
    "counts": np.array([1, 1], np.int32),
    "ids": np.zeros((2, 8), np.int32),
    "probs": np.full((2, 8), 0.1, np.float16),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": np.int32(2)}, "version 2, not 1"),
        ({"keys": np.array([5, 1], np.int64)}, "keys must rise"),
        ({"keys": np.array([-5, 1], np.int64)}, "keys must rise"),
        ({"keys": np.array([1.0, 2.0])}, "array 'keys'"),
        ({"counts": np.array([1], np.int32)}, "different lengths"),
        ({"ids": np.zeros((2, 7), np.int32)}, "different lengths"),
        ({"ids": np.full((2, 8), -1, np.int32)}, "must not be negative"),
        ({"probs": np.full((2, 8), np.nan, np.float16)}, "between 0 and 1"),
        ({"probs": np.array([None] * 2, object)}, "cannot be read"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, **GOOD)
    assert len(RowMemory.load(path)) == 2
    np.savez(path, **{**GOOD, **change})
    with pytest.raises(ConfigError, match=message):
        RowMemory.load(path)


def test_a_missing_or_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    with pytest.raises(ConfigError, match="there is no row memory"):
        RowMemory.load(path)
    filled([1, 2, 3] * 50).save(path)
    content = path.read_bytes()
    for damaged in (b"", b"PK", content[:-40], content[: len(content) // 2], b"x" * 100):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="cannot be read"):
            RowMemory.load(path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(ConfigError, match="cannot be read"):
        RowMemory.load(tmp_path / "array.npy")
