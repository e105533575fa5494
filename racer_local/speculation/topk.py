"""The k likeliest tokens of logits rows, without sorting a row. Layer: pure.

A vocabulary has 49,000 to 262,000 tokens and a decode step reads a handful of rows, so this is
most of what learning costs. The k largest logits lie in the k groups with the largest maxima, so
one pass over the row leaves a few hundred candidates. A decode step has swept the caches: what
counts is how much code and memory is touched, not how many numbers are compared. Hence few and
plain array operations, and Python's own lists for the last handful of numbers. Whoever has no use
for unlikely tokens gets the others for half the time: exponentials, their sum, one comparison.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import exp, isfinite
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["top_k"]

_Floats: TypeAlias = NDArray[np.float32]
_Ids: TypeAlias = NDArray[np.int32]

# Elements per group. Group j holds elements j, j + n_groups, j + 2 * n_groups, ...: maxima of
# such strided groups are sums over whole rows of a matrix, three times faster than of blocks.
_GROUP = 32
# Elements whose exponentials are summed at once: 64 KiB, which the allocator keeps at hand; larger
# blocks may be fresh pages every time.
_CHUNK = 16_384
# With the largest logit in this range exp() neither overflows nor loses terms that matter (those
# within 67 of it), so the pass that subtracts the maximum can be left out.
_SAFE_LOW, _SAFE_HIGH = -20.0, 60.0
_SAFE_TOTAL = exp(_SAFE_LOW)

# Exponentials of one row, per thread: an array of that size may be fresh pages at every allocation.
_local = threading.local()


def top_k(
    logits: _Floats, k: int, places: Sequence[int] | None = None, min_prob: float = 0.0
) -> tuple[_Ids, _Floats]:
    """Find the k likeliest tokens of every row, and their softmax probabilities.

    Among equal logits the lower id comes first; which of those that tie with the k-th are left
    out is not defined. NaN counts as minus infinity; infinite logits share the probability of the
    row; a row without any finite logit has probabilities of 0.

    Args:
        logits: float32 [n_rows, n_vocab]; only read, so it may be a view of foreign memory.
        k: how many tokens; more than ``n_vocab`` gives ``n_vocab``.
        places: the rows that are wanted, in this order; None for all.
        min_prob: tokens below it may be left out; where they are, ids and probabilities are 0.

    Returns:
        For each wanted row ids int32 [n, k], likeliest first, and probs float32 [n, k].

    Raises:
        ValueError: if ``logits`` has not two dimensions or ``k`` is negative.
    """
    if logits.ndim != 2 or k < 0:
        raise ValueError(f"logits have shape {logits.shape} and k is {k}; need two axes and k >= 0")
    n_vocab = logits.shape[1]
    k = min(k, n_vocab)
    places = range(len(logits)) if places is None else places
    ids = np.zeros((len(places), k), dtype=np.int32)
    probs = np.zeros((len(places), k), dtype=np.float32)
    if k == 0:
        return ids, probs
    scratch = _scratch(n_vocab)
    for i, place in enumerate(places):
        if min_prob > 0.0:
            likely = _likely(logits[place], k, min_prob, scratch)
            if likely is not None:
                ids[i, : len(likely[0])], probs[i, : len(likely[0])] = likely
                continue
        found = _row_top_k(logits[place], k, scratch)
        if found is None:
            lowest, highest = np.float32(-np.inf), np.finfo(np.float32).max
            clean = np.nan_to_num(logits[place], nan=lowest, posinf=highest, neginf=lowest)
            found = _row_top_k(clean, k, scratch)
        if found is None:
            ids[i] = range(k)
        else:
            ids[i], probs[i] = found
    return ids, probs


def _scratch(n: int) -> _Floats:
    scratch: _Floats | None = getattr(_local, "scratch", None)
    if scratch is None or len(scratch) < n:
        scratch = _local.scratch = np.empty(n, dtype=np.float32)
    return scratch[:n]


def _likely(
    row: _Floats, k: int, min_prob: float, scratch: _Floats
) -> tuple[list[int], list[float]] | None:
    """Find the tokens from ``min_prob`` on, at most k; None if the row needs more care."""
    # What overflows is not finite, and is told by the sum.
    with np.errstate(over="ignore", invalid="ignore"):
        np.exp(row, out=scratch)
        total = float(np.add.reduce(scratch))
    if not (total >= _SAFE_TOTAL and isfinite(total)):
        return None
    found = (scratch >= np.float32(min_prob * total)).nonzero()[0]
    best = sorted(zip((-row[found]).tolist(), found.tolist(), strict=True))[:k]
    return [token for _, token in best], [exp(-negative) / total for negative, _ in best]


def _row_top_k(row: _Floats, k: int, scratch: _Floats) -> tuple[list[int], list[float]] | None:
    """Find ids and probabilities of one row; None if it has to be cleaned first."""
    best = _largest(row, k)
    top = -best[0][0]
    # NaN counts as largest in numpy and compares false to all in Python: any of them is looked for.
    if not isfinite(top) or any(value != value for value, _ in best):
        return None
    shift = 0.0 if _SAFE_LOW <= top <= _SAFE_HIGH else top
    total = _sum_exp(row, shift, scratch)
    if not isfinite(total):
        return None
    return [token for _, token in best], [exp(-value - shift) / total for value, _ in best]


def _largest(row: _Floats, k: int) -> list[tuple[float, int]]:
    """The k largest elements as (minus element, index), largest first."""
    n_groups = len(row) // _GROUP
    if n_groups <= k:
        return sorted(_some_largest(row, k))
    n_grouped = n_groups * _GROUP
    grouped = row[:n_grouped].reshape(_GROUP, n_groups)
    groups = grouped.max(axis=0).argpartition(n_groups - k)[n_groups - k :]
    firsts = groups.tolist()
    best = [
        (negative, place // k * n_groups + firsts[place % k])
        for negative, place in _some_largest(grouped[:, groups].ravel(), k)
    ]
    if n_grouped < len(row):
        rest = _some_largest(row[n_grouped:], k)
        best += [(negative, n_grouped + place) for negative, place in rest]
    best.sort()
    return best[:k]


def _some_largest(values: _Floats, k: int) -> list[tuple[float, int]]:
    """The k largest elements, or all if there are fewer, in any order."""
    n = len(values)
    places = values.argpartition(n - k)[n - k :] if n > k else np.arange(n)
    negatives = [-value for value in values[places].tolist()]
    return list(zip(negatives, places.tolist(), strict=True))


def _sum_exp(row: _Floats, shift: float, scratch: _Floats) -> float:
    """Sum ``exp(row - shift)`` chunk by chunk."""
    total = 0.0
    for start in range(0, len(row), _CHUNK):
        part = row[start : start + _CHUNK]
        out = scratch[: len(part)]
        if shift != 0.0:
            part = np.subtract(part, np.float32(shift), out=out)
        np.exp(part, out=out)
        total += float(np.add.reduce(out))
    return total
