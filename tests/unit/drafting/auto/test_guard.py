"""The guard: when drafting may go on."""

from __future__ import annotations

import pytest

from racer_local.drafting.auto.guard import Guard


def test_gains_and_break_even_leave_everything_as_it_is() -> None:
    guard = Guard()
    for _ in range(500):
        guard.observe(3, 2, 1.5, 1.0, 0.0)
        assert not guard.is_asleep
        assert guard.margin == 0.0
    for _ in range(500):
        guard.observe(3, 1, 1.0, 1.0, 0.0)
        assert not guard.is_asleep


def test_a_loss_raises_the_margin_and_a_gain_takes_it_back() -> None:
    guard = Guard(0.01)
    for _ in range(10):
        guard.observe(3, 1, 1.1, 1.0, 0.0)
    assert 0.15 < guard.margin < 0.25
    for _ in range(20):
        guard.observe(3, 2, 1.2, 1.0, 0.0)
    assert guard.margin == 0.01


def test_drafts_that_keep_losing_stop_for_longer_and_longer() -> None:
    guard = Guard()
    asleep = []
    for _ in range(4000):
        asleep.append(guard.is_asleep)
        guard.observe(3, 1, 1.0 if guard.is_asleep else 1.5, 1.0, 0.0)
    assert 0.8 < sum(asleep[2000:]) / 2000 < 0.95
    assert sum(asleep[:100]) < 60


def test_overhead_counts_as_a_loss() -> None:
    guard = Guard()
    for _ in range(100):
        guard.observe(0, 1, 1.0, 1.0, 0.03)
        if guard.is_asleep:
            break
    assert guard.is_asleep
    guard = Guard()
    for _ in range(300):
        guard.observe(3, 2, 1.6, 1.0, 0.03)
        assert not guard.is_asleep


def test_the_share_of_overhead_is_that_of_plain_decoding_of_the_same_tokens() -> None:
    guard = Guard()
    assert guard.overhead_share == 0.0
    for _ in range(10):
        guard.observe(3, 2, 1.6, 1.0, 0.03)
    assert guard.overhead_share == pytest.approx(0.015)
    guard.reset()
    assert guard.overhead_share == 0.0


def test_a_change_of_text_is_noticed_and_sleep_starts_short_again() -> None:
    guard = Guard()
    for _ in range(2000):
        guard.observe(3, 1, 1.0 if guard.is_asleep else 1.5, 1.0, 0.0)
    n_awake = 0
    for _ in range(400):
        n_awake += not guard.is_asleep
        guard.observe(3, 2, 2.0 if guard.is_asleep else 1.5, 1.0, 0.0)
    assert n_awake > 100
    assert not guard.is_asleep
    n_asleep = 0
    while not guard.is_asleep:
        guard.observe(3, 1, 1.5, 1.0, 0.0)
    while guard.is_asleep:
        guard.observe(3, 1, 1.0, 1.0, 0.0)
        n_asleep += 1
    assert n_asleep == 48


def test_a_text_that_repeats_itself_ends_a_sleep_that_has_begun() -> None:
    guard = Guard()
    while not guard.is_asleep:
        guard.observe(3, 1, 1.5, 1.0, 0.0)
    guard.rouse()
    assert guard.is_asleep
    for _ in range(8):
        guard.observe(3, 1, 1.0, 1.0, 0.0)
    guard.rouse()
    assert not guard.is_asleep
    guard.rouse()
    assert not guard.is_asleep


def test_a_reset_forgets() -> None:
    guard = Guard()
    while not guard.is_asleep:
        guard.observe(3, 1, 2.0, 1.0, 0.0)
    guard.reset()
    assert not guard.is_asleep
    assert guard.gain == guard.margin == 0.0


def test_slow_plain_steps_are_not_drafting_s_fault() -> None:
    guard = Guard()
    for _ in range(300):
        guard.observe(0, 1, 3.0, 1.0, 0.005)
        assert not guard.is_asleep
        assert guard.margin == 0.0
