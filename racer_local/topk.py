"""The k likeliest tokens of logits rows, exactly and without sorting a row. Layer: pure.

A vocabulary has 49,000 to 262,000 tokens and a decode step reads a handful of rows, so this is
most of what learning costs. Two passes keep it cheap: the k-th largest of many group maxima is
a lower bound of the k-th largest logit, so one comparison leaves a few dozen candidates.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["top_k"]

_Floats: TypeAlias = NDArray[np.float32]
_Ids: TypeAlias = NDArray[np.int32]

# Elements per group. Group j holds elements j, j + n_groups, j + 2 * n_groups, ...: maxima of
# such strided groups are sums over whole rows of a matrix, three times faster than of blocks.
_GROUP = 256
# Elements whose exponentials are summed at once: 256 KiB of scratch stay in the L2 cache.
_CHUNK = 65_536
# With the largest logit in this range exp() neither overflows nor loses terms that matter (those
# within 67 of it), so the pass that subtracts the maximum can be left out.
_SAFE_LOW, _SAFE_HIGH = -20.0, 60.0


def top_k(logits: _Floats, k: int) -> tuple[_Ids, _Floats]:
    """Find the k likeliest tokens of every row, and their softmax probabilities.

    Exact, ties included: among equal logits the lower id comes first, as with ``argmax``. NaN
    counts as minus infinity; infinite logits share the probability of the row; a row without
    any finite logit has probabilities of 0.

    Args:
        logits: float32 [n_rows, n_vocab]; only read, so it may be a view of foreign memory.
        k: how many tokens; more than ``n_vocab`` gives ``n_vocab``.

    Returns:
        ids int32 [n_rows, k], likeliest first, and probs float32 [n_rows, k].

    Raises:
        ValueError: if ``logits`` has not two dimensions or ``k`` is negative.
    """
    if logits.ndim != 2 or k < 0:
        raise ValueError(f"logits have shape {logits.shape} and k is {k}; need two axes and k >= 0")
    n_rows, n_vocab = logits.shape
    k = min(k, n_vocab)
    ids = np.zeros((n_rows, k), dtype=np.int32)
    probs = np.zeros((n_rows, k), dtype=np.float32)
    if k == 0:
        return ids, probs
    scratch = np.empty(min(n_vocab, _CHUNK), dtype=np.float32)
    for i in range(n_rows):
        row = logits[i]
        if not _fill(row, ids[i], probs[i], scratch):
            lowest, highest = np.float32(-np.inf), np.finfo(np.float32).max
            clean = np.nan_to_num(row, nan=lowest, posinf=highest, neginf=lowest)
            _fill(clean, ids[i], probs[i], scratch)
    return ids, probs


def _fill(row: _Floats, ids: _Ids, probs: _Floats, scratch: _Floats) -> bool:
    """Fill ``ids`` and ``probs`` for one row; False if the row has to be cleaned first."""
    k = len(ids)
    candidates = _candidates(row, k)
    values = row[candidates]
    order = (-values).argsort(kind="stable")[:k]
    if len(order) < k:
        return False
    ids[:] = candidates[order]
    best = values[order]
    top = float(best[0])
    if not np.isfinite(top):
        return False
    shift = 0.0 if _SAFE_LOW <= top <= _SAFE_HIGH else top
    total = _sum_exp(row, shift, scratch)
    if not np.isfinite(total):
        return False
    probs[:] = np.exp(best.astype(np.float64) - shift) / total
    return True


def _candidates(row: _Floats, k: int) -> NDArray[np.intp]:
    """Indices, ascending, that include the k largest elements and all that tie with them."""
    n_groups = len(row) // _GROUP
    if n_groups <= k:
        return np.arange(len(row))
    # Elements after the last full group need no maximum: without them the bound is still low
    # enough, and the comparison looks at the whole row.
    maxima = row[: n_groups * _GROUP].reshape(_GROUP, n_groups).max(axis=0)
    maxima.partition(n_groups - k)
    found: NDArray[np.intp] = (row >= maxima[n_groups - k]).nonzero()[0]
    return found


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
