"""The k likeliest tokens of a row."""

from __future__ import annotations

import numpy as np
import pytest

from racer_local.speculation.topk import top_k


def test_equal_logits_come_in_the_order_of_their_ids() -> None:
    row = np.zeros((1, 5_000), np.float32)
    row[0, [4_000, 17, 900]] = 2.0
    ids, _ = top_k(row, 3)
    assert ids.tolist() == [[17, 900, 4_000]]


def test_the_first_id_is_the_argmax() -> None:
    rows = np.round(np.random.default_rng(0).normal(size=(20, 3_000)) * 200).astype(np.float32)
    assert top_k(rows, 3)[0][:, 0].tolist() == rows.argmax(axis=1).tolist()


@pytest.mark.parametrize("shift", [-1e30, -500.0, 0.0, 70.0, 1e30])
def test_probabilities_do_not_depend_on_the_level_of_the_logits(shift: float) -> None:
    row = np.full((1, 4_096), -10.0, np.float32)
    row[0, :2] = [3.0, 2.0]
    expected = np.exp([3.0, 2.0]) / (np.exp(3.0) + np.exp(2.0) + 4_094 * np.exp(-10.0))
    if abs(shift) == 1e30:
        row *= 0.0
        expected = np.full(2, 1 / 4_096)
    _, probs = top_k(row + np.float32(shift), 2)
    assert probs[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("place", [0, 2_500, 4_099])
def test_nan_is_never_chosen(place: int) -> None:
    row = np.linspace(0.0, 1.0, 4_100, dtype=np.float32)[None]
    row[0, place] = np.nan
    ids, probs = top_k(row, 4)
    assert place not in ids
    assert np.isfinite(probs).all()
    assert (probs > 0).all()


def test_infinite_logits_share_the_row() -> None:
    row = np.zeros((1, 3_000), np.float32)
    row[0, [5, 2_999]] = np.inf
    ids, probs = top_k(row, 3)
    assert ids[0, :2].tolist() == [5, 2_999]
    assert probs.tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("n_vocab", [3, 5_000])
def test_a_row_without_a_finite_logit_has_no_probability(value: float, n_vocab: int) -> None:
    ids, probs = top_k(np.full((2, n_vocab), value, np.float32), 2)
    assert ids.tolist() == [[0, 1], [0, 1]]
    assert not probs.any()


def test_masked_tokens_are_chosen_last() -> None:
    row = np.full((1, 6_000), -np.inf, np.float32)
    row[0, [10, 20]] = [1.0, 1.0]
    ids, probs = top_k(row, 3)
    assert ids[0, :2].tolist() == [10, 20]
    assert probs[0] == pytest.approx([0.5, 0.5, 0.0])


def test_the_logits_are_left_as_they_were() -> None:
    rows = np.random.default_rng(1).normal(size=(3, 3_001)).astype(np.float32)
    rows[1, 7] = np.nan
    before = rows.copy()
    rows.flags.writeable = False
    top_k(rows, 8)
    assert np.array_equal(rows, before, equal_nan=True)


def test_shapes_at_the_edges() -> None:
    assert top_k(np.zeros((0, 9), np.float32), 3)[0].shape == (0, 3)
    assert top_k(np.zeros((2, 9), np.float32), 0)[1].shape == (2, 0)
    assert top_k(np.zeros((2, 9), np.float32), 20)[0].shape == (2, 9)
    ids, probs = top_k(np.zeros((1, 1), np.float32), 1)
    assert (ids.dtype, probs.dtype, probs[0, 0]) == (np.int32, np.float32, 1.0)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="two axes"):
        top_k(np.zeros(9, np.float32), 3)
    with pytest.raises(ValueError, match="two axes"):
        top_k(np.zeros((1, 9), np.float32), -1)
