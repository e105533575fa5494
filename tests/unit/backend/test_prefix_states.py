"""Saved texts: which are kept, which is brought back."""

from __future__ import annotations

import pytest

from racer_local.backend.prefix_states import PrefixStates, common_prefix


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [([], [], 0), ([1], [], 0), ([1], [2], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1)],
)
def test_common_prefix(a: list[int], b: list[int], n: int) -> None:
    assert common_prefix(a, b) == common_prefix(b, a) == n


def text(start: int, n: int = 100) -> list[int]:
    return list(range(start, start + n))


def test_the_state_that_shares_most_is_handed_out_once() -> None:
    states = PrefixStates(1000)
    states.put(text(0), b"a")
    states.put([*text(0, 50), *text(500, 50)], b"b")
    prompt = [*text(0, 50), *text(500, 30), 7]
    assert states.take(prompt, 0) == ([*text(0, 50), *text(500, 50)], b"b")
    assert states.take(prompt, 0) == (text(0), b"a")
    assert states.take(prompt, 0) is None
    assert states.size_bytes == 0


def test_a_state_must_do_clearly_better_than_the_cache() -> None:
    states = PrefixStates(1000)
    states.put(text(0), b"a")
    assert states.take(text(0, 101), 90) is None
    assert states.take(text(900), 0) is None
    assert states.take(text(0, 101), 60) is not None


def test_a_model_that_cannot_take_tokens_back_needs_the_whole_text() -> None:
    states = PrefixStates(1000)
    states.put(text(0), b"a")
    assert states.take([*text(0, 80), 7, 8], 0, whole=True) is None
    assert states.take(text(0), 0, whole=True) is None
    assert states.take([*text(0), 7], 0, whole=True) is not None


def test_the_least_recently_saved_go_first() -> None:
    states = PrefixStates(10, max_states=3)
    for start in (0, 1000, 2000):
        assert states.put(text(start), bytes(3))
    assert states.put(text(3000), bytes(3))
    assert states.take([*text(0), 1], 0) is None
    assert states.put(text(4000), bytes(8))
    assert (len(states), states.size_bytes) == (1, 8)


def test_a_state_that_is_too_large_is_not_kept_and_evicts_nothing() -> None:
    states = PrefixStates(10)
    states.put(text(0), bytes(5))
    assert not states.put(text(1000), bytes(11))
    assert len(states) == 1


def test_a_longer_text_replaces_its_own_beginning() -> None:
    states = PrefixStates(100)
    states.put(text(0, 50), b"short")
    states.put(text(0, 90), b"long")
    states.put(text(0, 90), b"again")
    assert (len(states), states.size_bytes) == (1, 5)


def test_what_is_worth_saving() -> None:
    states = PrefixStates(100)
    assert states.is_worth_saving(100, 0)
    assert not states.is_worth_saving(20, 0)
    assert not states.is_worth_saving(1000, 950)
    assert not PrefixStates(0).is_worth_saving(1000, 0)
    assert not PrefixStates(100, max_states=0).is_worth_saving(1000, 0)
    assert not PrefixStates(100, max_states=0).put(text(0), b"a")


def test_clearing() -> None:
    states = PrefixStates(100)
    states.put(text(0), b"a")
    states.clear()
    assert (len(states), states.size_bytes) == (0, 0)
