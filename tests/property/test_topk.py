"""``top_k`` against a full sort in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from racer_local.speculation.topk import top_k


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 3),
    st.one_of(st.integers(1, 40), st.integers(250, 6_000)),
    st.integers(0, 20),
    st.sampled_from([0.01, 1.0, 5.0, 60.0]),
    st.booleans(),
    st.floats(0.0, 1.0),
)
def test_it_equals_a_full_sort(
    seed: int, n_rows: int, n_vocab: int, k: int, spread: float, rounded: bool, masked: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(n_rows, n_vocab)) * spread).astype(np.float32)
    if rounded:
        logits = np.round(logits)
    logits[rng.random(logits.shape) < masked / 2] = -np.inf
    logits[rng.random(logits.shape) < masked / 4] = np.nan
    ids, probs = top_k(logits, k)

    exact = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
    k = min(k, n_vocab)
    assert np.take_along_axis(exact, ids, axis=1).tolist() == (-np.sort(-exact))[:, :k].tolist()
    for row, chosen, got in zip(exact, ids, probs, strict=True):
        assert len(set(chosen.tolist())) == k
        assert sorted(chosen.tolist(), key=lambda j: (-row[j], j)) == chosen.tolist()
        top = row.max()
        shares = np.zeros(n_vocab) if np.isneginf(top) else np.exp(row - top)
        expected = shares[chosen] / max(shares.sum(), 1e-300)
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-30)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 6_000),
    st.integers(0, 20),
    st.sampled_from([-1e30, -100.0, 0.0, 40.0, 1e30]),
    st.sampled_from([0.001, 0.01, 0.3, 1.0]),
    st.booleans(),
)
def test_without_improbable_tokens_the_others_are_the_same(
    seed: int, n_vocab: int, k: int, level: float, min_prob: float, masked: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(2, n_vocab)) * 5 + level).astype(np.float32)
    if masked:
        logits[0, rng.random(n_vocab) < 0.5] = -np.inf
        logits[1, 0] = np.nan
    ids, probs = top_k(logits, k)
    some_ids, some_probs = top_k(logits, k, min_prob=min_prob)
    for all_, all_p, some, some_p in zip(ids, probs, some_ids, some_probs, strict=True):
        n = int(np.count_nonzero(some_p))
        assert some[:n].tolist() == all_[:n].tolist()
        assert some_p[:n] == pytest.approx(all_p[:n], rel=1e-4)
        # At the very limit rounding decides.
        assert (all_p[n:] < min_prob * 1.001).all()
