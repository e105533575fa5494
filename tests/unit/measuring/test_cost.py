"""The cost model: what it learns from steps, and what it does not fall for."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from racer_local.errors import ConfigError
from racer_local.measuring.cost import DEFAULT_CURVE, CostCurve, CostModel, read_cost_curve

COSTS = Path(__file__).parents[2] / "data" / "costs.json"
CURVE = read_cost_curve(f"{COSTS}:smollm2_q4_0")
PROBE = [(n, 0.01 * CURVE(n)) for n in (1, 2, 4, 8, 16, 64)]


def ratio(model: CostModel, n: int, n_context: int = 0) -> float:
    times = model.times(64, n_context)
    return times[n] / times[1]


def test_a_new_model_is_straight_between_its_probe_points() -> None:
    model = CostModel(PROBE)
    assert model.seconds(1) == pytest.approx(0.01)
    assert model.seconds(3) == pytest.approx((PROBE[1][1] + PROBE[2][1]) / 2)
    assert model.times(64)[64] == pytest.approx(model.seconds(64))
    assert model.times(1000)[-1] == model.seconds(model.n_max)
    assert model.seconds(2 * model.n_max) == pytest.approx(2 * model.seconds(model.n_max))


def test_steps_of_the_curve_are_learned_where_they_are() -> None:
    model, noise = CostModel(PROBE), random.Random(1)
    # Kernels work in groups of 4 rows: t(n) is that of the next multiple of four.
    true = {n: 0.01 * (0.6 + 0.4 * -(-n // 4)) for n in range(1, 17)}
    for _ in range(1500):
        n = noise.choice([1, 1, 1, 1, *range(2, 17)])
        model.observe(n, 0, true[n] * noise.uniform(0.97, 1.03))
    for n in range(2, 17):
        assert ratio(model, n) == pytest.approx(true[n] / true[1], rel=0.1), n


def test_a_slower_machine_is_noticed_within_a_few_steps_and_changes_no_ratio() -> None:
    model = CostModel(PROBE)
    for n in (1, 1, 2, 8) * 10:
        model.observe(n, 0, 0.01 * CURVE(n))
    before = [ratio(model, n) for n in range(1, 65)]
    for n in (1, 1, 2, 8, 1):
        model.observe(n, 0, 0.025 * CURVE(n))
    assert model.seconds(1) == pytest.approx(0.025, rel=0.03)
    for n in (1, 2, 1, 1, 8):
        model.observe(n, 0, 0.01 * CURVE(n))
    assert model.seconds(1) == pytest.approx(0.01, rel=0.03)
    after = [ratio(model, n) for n in range(1, 65)]
    assert after == pytest.approx(before, rel=0.12)


def test_single_slow_steps_change_next_to_nothing() -> None:
    model = CostModel(PROBE)
    for i in range(200):
        n = (1, 1, 4, 8)[i % 4]
        is_slow = i % 20 == 7
        model.observe(n, 0, 0.01 * CURVE(n) * (30 if is_slow else 1))
    assert model.seconds(1) == pytest.approx(0.01, rel=0.02)
    assert ratio(model, 8) == pytest.approx(CURVE(8), rel=0.12)


def test_more_tokens_are_never_cheaper_than_one_but_a_dip_between_may_stay() -> None:
    model = CostModel([(1, 0.01), (6, 0.0393), (8, 0.036), (9, 0.002)])
    times = model.times(9)
    assert times[8] < times[6]
    assert times[9] == times[1] == min(times)


def test_attention_is_paid_per_row_and_context() -> None:
    model = CostModel(PROBE, n_context=512, context_cost=1e-6)
    assert model.seconds(4, 512) == pytest.approx(PROBE[2][1])
    assert model.seconds(4, 1512) == pytest.approx(PROBE[2][1] + 4e-3)
    assert model.seconds(1, 0) > 0
    assert ratio(model, 4, 100_000) > ratio(model, 4)


def test_what_cannot_be_a_time_is_ignored_and_a_fixed_model_never_learns() -> None:
    model = CostModel(PROBE, n_max=64)
    for n, seconds in ((1, 0.0), (1, -1.0), (1, float("nan")), (1, float("inf")), (0, 1), (65, 1)):
        model.observe(n, 0, seconds)
    assert model.n_observed == 0
    fixed = CostModel.of_curve(CURVE, 64)
    fixed.observe(1, 0, 50.0)
    assert fixed.times(64)[1:] == pytest.approx([CURVE(n) for n in range(1, 65)])


def test_the_version_tells_of_changes_in_shape_only() -> None:
    model = CostModel(PROBE)
    for _ in range(50):
        model.observe(1, 0, 0.02)
    assert model.version == 0
    for n in (1, 8) * 20:
        model.observe(n, 0, 0.02 * (1 if n == 1 else 1.3 * CURVE(8)))
    assert model.version > 0


def test_it_goes_on_after_saving_where_it_was() -> None:
    model = CostModel(PROBE, n_max=64, n_context=100, context_cost=1e-7)
    for n in (1, 2, 8) * 30:
        model.observe(n, 100, 0.03 * CURVE(n))
    saved = json.loads(json.dumps(model.to_dict()))
    again = CostModel.from_dict(saved)
    assert again.times(64, 700) == pytest.approx(model.times(64, 700), rel=1e-5)
    assert len(json.dumps(saved)) < 4096


@pytest.mark.parametrize(
    "saved",
    [{}, {"version": 2}, {"version": 1, "seconds": 3}, {"version": 1, "seconds": [1, "x"]}],
)
def test_a_saved_model_that_is_none_is_refused(saved: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CostModel.from_dict(saved)


def test_points_that_are_no_curve_are_refused() -> None:
    for points in ([(1, 1.0)], [(2, 1.0), (3, 2.0)], [(1, 0.0), (2, 1.0)], [(2, 1.0), (1, 1.0)]):
        with pytest.raises(ConfigError):
            CostModel(points)
    for bad in ({"n_max": 0}, {"n_context": -1}, {"context_cost": float("nan")}):
        with pytest.raises(ConfigError, match="a cost model has"):
            CostModel(PROBE, **bad)  # type: ignore[arg-type]  # on purpose


def test_a_curve_goes_on_straight_beyond_its_points() -> None:
    curve = CostCurve([1, 2, 4], [1.0, 1.5, 2.0])
    assert [curve(n) for n in (1, 2, 3, 6)] == [1.0, 1.5, 1.75, 2.5]


def test_a_curve_that_is_wrong_about_large_steps_is_not_taken_for_a_slow_machine() -> None:
    model = CostModel([(1, 0.01), (2, 0.0101), (64, 0.012)])
    for n in (40, 33, 28, 20, 24, 30, 36, 22, 26) * 3:
        model.observe(n, 0, 0.01 * n)
    assert model.seconds(1) == pytest.approx(0.01)
    assert ratio(model, 25) > 15


def test_a_guessed_curve_takes_its_level_from_the_first_steps() -> None:
    model = CostModel([(1, 1.0), (2, 1.5), (64, 20.0)], is_guess=True)
    for _ in range(3):
        model.observe(1, 0, 0.02)
        model.observe(2, 0, 0.03)
    assert model.seconds(1) == pytest.approx(0.02)
    assert ratio(model, 64) == pytest.approx(20.0)


def test_plain_steps_have_the_last_word_about_the_level() -> None:
    model = CostModel([(1, 0.01), (2, 0.0101)])
    for _ in range(64):
        assert not model.wants_plain
        model.observe(2, 0, 0.03)
    # Steps of two alone cannot tell a slow machine from a wrong curve.
    assert model.wants_plain
    model.observe(1, 0, 0.01)
    assert not model.wants_plain
    model.observe(1, 0, 0.0101)
    assert model.seconds(1) == pytest.approx(0.01, rel=0.05)
    assert ratio(model, 2) == pytest.approx(3.0, rel=0.1)


def test_a_probe_on_a_busy_machine_is_found_out_and_its_shape_dropped() -> None:
    # Measured while other programs took turns: 200 times too slow, and in proportion to n.
    model = CostModel.of_probe([(1, 2.0), (2, 5.8)], 16)
    assert model.times(16)[4] > 5 * model.times(16)[1]
    for _ in range(10):
        model.observe(1, 0, 0.01)
    times = model.times(16)
    assert times[1] == pytest.approx(0.01)
    assert times[4] == pytest.approx(0.01 * DEFAULT_CURVE(4))
    # From there on steps of several tokens teach the true shape.
    for _ in range(10):
        model.observe(4, 0, 0.03)
        model.observe(1, 0, 0.01)
    assert model.seconds(4) == pytest.approx(0.03, rel=0.1)


def test_a_slower_machine_keeps_the_measured_shape() -> None:
    model = CostModel.of_probe([(1, 0.01), (2, 0.017), (4, 0.027), (8, 0.044)], 8)
    for _ in range(10):
        model.observe(1, 0, 0.03)
    assert model.seconds(4) / model.seconds(1) == pytest.approx(2.7, rel=0.05)


def test_beyond_the_probe_the_default_shape_goes_on_from_the_last_point() -> None:
    model = CostModel.of_probe([(1, 0.3), (2, 0.5)], 64)
    times = model.times(64)
    assert times[2] == pytest.approx(0.5)
    assert times[8] == pytest.approx(0.3 + 0.2 / 0.5 * (DEFAULT_CURVE(8) - 1))
    assert times[1:] == sorted(times[1:])
