"""Reading and writing traces."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path

import numpy as np
import pytest

from racer_local.bench.trace import Trace, read_trace, write_trace
from racer_local.errors import TraceError

RECORDED = Path(__file__).parents[2] / "data" / "smollm2_q4_1.npz"


def small_trace() -> Trace:
    return Trace(
        tokens=np.array([1, 2, 3, 4, 5], np.int32),
        topk_ids=np.arange(10, dtype=np.int32).reshape(5, 2),
        topk_probs=np.full((5, 2), 0.5, np.float16),
        offsets=np.array([0, 3, 5], np.int64),
        n_prompt=np.array([2, 1], np.int32),
        category=np.array(["qa", "rag"]),
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    write_trace(path, small_trace())
    for field in dataclasses.fields(Trace):
        expected = getattr(small_trace(), field.name)
        assert np.array_equal(getattr(read_trace(path), field.name), expected)


def test_records_are_the_slices_between_the_offsets() -> None:
    first, second = small_trace()
    assert (first.category, first.n_prompt, first.tokens.tolist()) == ("qa", 2, [1, 2, 3])
    assert (second.category, second.n_prompt, second.tokens.tolist()) == ("rag", 1, [4, 5])
    assert second.topk_ids.tolist() == [[6, 7], [8, 9]]
    assert second.topk_probs.dtype == np.float32


def test_the_recorded_trace_is_sound() -> None:
    trace = read_trace(RECORDED)
    assert len(trace) == 54
    assert len({record.category for record in trace}) == 9
    assert sum(len(r.tokens) - r.n_prompt for r in trace) == 7_819


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"there is no trace file .*none\.npz"):
        read_trace(tmp_path / "none.npz")


@pytest.mark.parametrize("content", [b"", b"hello, this is text", b"PK\x03\x04 broken"])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.npz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="cannot be read as a trace"):
        read_trace(path)


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.98])
def test_a_cut_off_file_is_refused(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "trace.npz"
    whole = RECORDED.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(TraceError, match="cannot be read as a trace"):
        read_trace(path)


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    content = bytearray(RECORDED.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(TraceError, match="cannot be read as a trace"):
        read_trace(path)


def test_a_single_array_and_other_arrays_are_refused(tmp_path: Path) -> None:
    single, other = tmp_path / "single.npy", tmp_path / "other.npz"
    np.save(single, np.zeros(3))
    np.savez(other, weights=np.zeros(3))
    with pytest.raises(TraceError, match="single array"):
        read_trace(single)
    with pytest.raises(TraceError, match="no array 'tokens'"):
        read_trace(other)


def test_pickled_content_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    write_trace(path, small_trace())
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name != "category.npy"]
        parts = {name: archive.read(name) for name in names}
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{"evil": 1}, {}], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
        archive.writestr("category.npy", objects.read_bytes())
    with pytest.raises(TraceError, match="cannot be read as a trace"):
        read_trace(path)


def test_a_folder_is_refused_for_reading_and_writing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="cannot write"):
        write_trace(tmp_path, small_trace())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.zeros(5)}, "'tokens' is float64"),
        ({"category": np.array([1, 2])}, "'category' is int64"),
        ({"topk_ids": np.zeros(5, np.int32)}, "'topk_ids' is int32 with 1 axes"),
        ({"topk_ids": np.zeros((5, 3), np.int32)}, "topk_ids has shape"),
        ({"topk_ids": np.full((5, 2), -1, np.int32)}, "must not be negative"),
        ({"tokens": np.array([1, 2, 3, 4, -5], np.int32)}, "must not be negative"),
        ({"category": np.array(["qa"])}, "1 categories"),
        ({"offsets": np.array([0, 5], np.int64)}, "2 offsets"),
        ({"offsets": np.array([0, 3, 4], np.int64)}, "must rise from 0 to 5"),
        ({"offsets": np.array([0, 7, 5], np.int64)}, "must rise from 0 to 5"),
        ({"n_prompt": np.array([0, 1], np.int32)}, "needs a prompt"),
        ({"n_prompt": np.array([2, 3], np.int32)}, "needs a prompt"),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(
    change: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        dataclasses.replace(small_trace(), **change)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    trace = small_trace()
    path = tmp_path / "trace.npz"
    arrays = {f.name: getattr(trace, f.name) for f in dataclasses.fields(Trace)}
    np.savez(path, **{**arrays, "n_prompt": np.array([9, 9], np.int32)})
    with pytest.raises(TraceError, match=r"trace\.npz is damaged"):
        read_trace(path)
