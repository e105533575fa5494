"""Acceptance estimates: what they add up to, and what they learn."""

from __future__ import annotations

import random

import pytest

from racer_local.bench.reliability import Reliability
from racer_local.drafting.auto.estimate import N_CELLS, N_ROW, Estimator
from racer_local.drafting.auto.prior_weights import PRIOR_CENTI_WEIGHTS
from racer_local.drafting.auto.row_store import row_places
from racer_local.speculation.tree import ROOT, DraftTree, Source


def test_the_shipped_weights_fit_the_cells() -> None:
    assert len(PRIOR_CENTI_WEIGHTS) == N_CELLS
    assert max(map(abs, PRIOR_CENTI_WEIGHTS)) < 1000
    with pytest.raises(ValueError, match="weights for"):
        Estimator([0.0])


def test_estimates_of_one_place_never_add_up_to_more_than_one() -> None:
    rng = random.Random(3)
    weights = [rng.uniform(-9, 99) for _ in range(N_CELLS)]
    estimator = Estimator(weights)
    for n in (0, 1, 5, 30):
        cells = [tuple(rng.randrange(N_CELLS) for _ in range(9)) for _ in range(n)]
        for probs in (estimator.estimate(cells), estimator.calibrate(cells, [0.9] * n)):
            assert sum(probs) <= 1.0 + 1e-9
            assert all(0.0 <= prob <= 1.0 for prob in probs)


def test_what_is_taken_gains_and_what_competed_loses() -> None:
    estimator = Estimator([0.0] * N_CELLS)
    cells = [(0, 1), (2, 3)]
    before = estimator.estimate(cells)
    for _ in range(50):
        estimator.learn(cells, estimator.estimate(cells), 0)
    after = estimator.estimate(cells)
    assert after[0] > before[0]
    assert after[1] < before[1]
    for _ in range(200):
        estimator.learn(cells, estimator.estimate(cells), -1)
    assert sum(estimator.estimate(cells)) < sum(after)


def test_estimates_follow_a_new_text_within_some_hundred_tokens() -> None:
    rng = random.Random(5)
    estimator = Estimator([0.0] * N_CELLS, rate=0.02)
    cells = [(10, 20, 30, 40), (11, 21, 31, 41)]
    for _ in range(400):
        estimator.learn(cells, estimator.estimate(cells), 0 if rng.random() < 0.8 else -1)
    assert estimator.estimate(cells)[0] == pytest.approx(0.8, abs=0.1)


def test_a_rate_of_zero_never_changes_a_weight() -> None:
    estimator = Estimator(rate=0.0)
    before = list(estimator.weights)
    estimator.learn([(1, 2)], estimator.estimate([(1, 2)]), 0)
    assert estimator.weights == before


def test_calibration_makes_estimates_mean_what_they_say() -> None:
    rng = random.Random(7)
    estimator = Estimator([0.0] * N_CELLS, rate=0.0)
    # Estimates of 0.825 of which half are taken, and of 0.325 that are right.
    for _ in range(4000):
        estimator.learn([(0,)], [0.825], 0 if rng.random() < 0.5 else -1)
        estimator.learn([(0,)], [0.325], 0 if rng.random() < 0.325 else -1)
    assert estimator.calibrate([(0,)], [0.825])[0] == pytest.approx(0.5, abs=0.06)
    assert estimator.calibrate([(0,)], [0.325])[0] == pytest.approx(0.325, abs=0.04)
    for prob in (0.0, 1e-9, 0.5, 0.999, 1.0):
        assert 0.0 <= estimator.calibrate([(0,)], [prob])[0] < 1.0


def test_what_books_speak_about_is_calibrated_apart() -> None:
    estimator = Estimator([0.0] * N_CELLS, rate=0.0)
    own, book = (0,), (0, N_CELLS)
    for _ in range(4000):
        estimator.count(book, 0.825, False)
    assert estimator.calibrate([own, own], [0.5, 0.4]) == [0.5, 0.4]
    assert estimator.calibrate([own], [0.825]) == [0.825]
    assert estimator.calibrate([book], [0.825])[0] < 0.1


def test_a_row_gives_each_token_the_cell_of_its_first_rank() -> None:
    places = row_places([7, 8, 7, 9, 5, 6, 4], [0.6, 0.2, 0.1, 0.05, 0.03, 0.005, 0.0])
    assert list(places) == [7, 8, 9, 5]
    assert len(set(places.values())) == 4
    assert all(2 <= place < N_ROW for place in places.values())
    assert row_places([1], [float("nan")]) == {}
    assert row_places([1, 2], [1.0, 1.5])[1] < N_ROW


def test_reliability_counts_the_children_of_accepted_nodes_given_their_parent() -> None:
    tree = DraftTree(1)
    first = tree.add(ROOT, 2, Source.LOGITS, 0.8)
    tree.add(ROOT, 3, Source.LOGITS, 0.15)
    tree.add(first, 4, Source.LOGITS, 0.4)
    reliability = Reliability()
    reliability.count(tree, ROOT, 2)
    reliability.count(tree, first, 9)
    table = {bin_["low"]: bin_ for bin_ in reliability.table()}
    assert set(table) == {0.1, 0.5, 0.8}
    assert table[0.8]["taken"] == 1.0
    assert table[0.5]["estimated"] == pytest.approx(0.5)
    assert table[0.5]["taken"] == 0.0
    assert sum(bin_["count"] for bin_ in table.values()) == 3
