"""Recorded decodings: read and write. Layer: pure.

A trace holds what a drafter learns from: the tokens of prompts and answers, and the head of the
target's distribution at every position. With it drafters are compared without a model, on the
very same text. The file is a NumPy ``.npz`` of plain arrays; nothing in it is ever unpickled.

| array | type and shape | meaning |
| --- | --- | --- |
| tokens | int32 [P] | token ids, prompt then answer, record after record |
| topk_ids | int32 [P, k] | the k likeliest next tokens after this position, likeliest first |
| topk_probs | float16 [P, k] | their softmax probabilities at temperature 1 |
| offsets | int64 [R + 1] | record r is positions offsets[r] to offsets[r + 1] |
| n_prompt | int32 [R] | how many of them are prompt |
| category | str [R] | what kind of text it is |
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from racer_local.errors import TraceError

__all__ = ["Record", "Trace", "read_trace", "write_trace"]


@dataclass(frozen=True, slots=True)
class Record:
    """One recorded answer.

    Attributes:
        category: what kind of text it is.
        n_prompt: how many of the tokens are prompt, at least 1.
        tokens: int32 [n], prompt then answer.
        topk_ids: int32 [n, k].
        topk_probs: float32 [n, k].
    """

    category: str
    n_prompt: int
    tokens: NDArray[np.int32]
    topk_ids: NDArray[np.int32]
    topk_probs: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Trace:
    """A checked trace; the arrays are those of the module's table."""

    tokens: NDArray[np.int32]
    topk_ids: NDArray[np.int32]
    topk_probs: NDArray[np.float16]
    offsets: NDArray[np.int64]
    n_prompt: NDArray[np.int32]
    category: NDArray[np.str_]

    def __post_init__(self) -> None:
        """Check types, shapes and ranges.

        Raises:
            TraceError: naming the first thing that is wrong.
        """
        _check(self)

    def __len__(self) -> int:
        """Count the records."""
        return len(self.n_prompt)

    def __iter__(self) -> Iterator[Record]:
        """Go through the records in file order."""
        for r in range(len(self)):
            here = slice(int(self.offsets[r]), int(self.offsets[r + 1]))
            yield Record(
                category=str(self.category[r]),
                n_prompt=int(self.n_prompt[r]),
                tokens=self.tokens[here],
                topk_ids=self.topk_ids[here],
                topk_probs=self.topk_probs[here].astype(np.float32),
            )

    def select(self, places: Iterable[int]) -> Trace:
        """Make a trace of some of the records, in the order given.

        Raises:
            TraceError: if none are chosen.
            IndexError: if there is no such record.
        """
        chosen = list(places)
        if not chosen:
            raise TraceError("a selection of no records is not a trace")
        parts = [slice(int(self.offsets[r]), int(self.offsets[r + 1])) for r in chosen]
        return Trace(
            tokens=np.concatenate([self.tokens[part] for part in parts]),
            topk_ids=np.concatenate([self.topk_ids[part] for part in parts]),
            topk_probs=np.concatenate([self.topk_probs[part] for part in parts]),
            offsets=np.cumsum([0, *(part.stop - part.start for part in parts)], dtype=np.int64),
            n_prompt=self.n_prompt[chosen],
            category=self.category[chosen],
        )


_KINDS = {
    "tokens": "i",
    "topk_ids": "i",
    "topk_probs": "f",
    "offsets": "i",
    "n_prompt": "i",
    "category": "U",
}


def _check(trace: Trace) -> None:
    arrays = {name: getattr(trace, name) for name in _KINDS}
    for name, kind in _KINDS.items():
        n_axes = 2 if name.startswith("topk") else 1
        if arrays[name].dtype.kind != kind or arrays[name].ndim != n_axes:
            raise TraceError(
                f"array {name!r} is {arrays[name].dtype} with {arrays[name].ndim} axes; "
                f"expected kind {kind!r} with {n_axes}"
            )
    n_positions, n_records = len(trace.tokens), len(trace.n_prompt)
    if trace.topk_ids.shape != trace.topk_probs.shape or len(trace.topk_ids) != n_positions:
        raise TraceError(
            f"{n_positions} tokens, but topk_ids has shape {trace.topk_ids.shape} and topk_probs "
            f"{trace.topk_probs.shape}"
        )
    if len(trace.category) != n_records or len(trace.offsets) != n_records + 1:
        raise TraceError(
            f"{n_records} records, but {len(trace.category)} categories and "
            f"{len(trace.offsets)} offsets; expected one more offset than records"
        )
    lengths = np.diff(trace.offsets)
    if trace.offsets[0] != 0 or trace.offsets[-1] != n_positions or (lengths < 0).any():
        raise TraceError(f"offsets must rise from 0 to {n_positions}, the number of tokens")
    if (trace.n_prompt < 1).any() or (trace.n_prompt > lengths).any():
        raise TraceError(
            "every record needs a prompt of at least 1 token and no longer than itself"
        )
    if n_positions and (trace.tokens.min() < 0 or trace.topk_ids.min(initial=0) < 0):
        raise TraceError("token ids must not be negative")


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace.

    Raises:
        TraceError: if the file is missing, damaged, not a trace, or contradicts itself.
    """
    name = os.fspath(path)
    try:
        # Opened here: NumPy leaves a file open that turns out to be damaged.
        with open(name, "rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                raise TraceError(f"{name} is a single array, not a trace")
            missing = [key for key in _KINDS if key not in content.files]
            if missing:
                raise TraceError(f"{name} is not a trace: it has no array {missing[0]!r}")
            arrays = {key: content[key] for key in _KINDS}
    except FileNotFoundError:
        raise TraceError(f"there is no trace file {name}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise TraceError(f"{name} cannot be read as a trace: {error}") from error
    try:
        return Trace(**arrays)
    except TraceError as error:
        raise TraceError(f"{name} is damaged: {error}") from None


def write_trace(path: str | os.PathLike[str], trace: Trace) -> None:
    """Write a trace to exactly ``path``, compressed.

    Raises:
        TraceError: if the file cannot be written.
    """
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, **{name: getattr(trace, name) for name in _KINDS})
    except OSError as error:
        raise TraceError(f"cannot write the trace {os.fspath(path)}: {error}") from error
