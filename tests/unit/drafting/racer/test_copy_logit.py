"""Copy-Logit rows."""

from __future__ import annotations

import numpy as np
import pytest

from racer_local.drafting.racer import copy_logit
from racer_local.drafting.racer.copy_logit import CopyLogit, RowTable


def rows(*firsts: int, width: int = 3) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Make ids and probabilities, learned at positions 0, 1, ... of the text."""
    ids = np.array([[first + i for i in range(width)] for first in firsts], np.int32)
    probs = np.full(ids.shape, 0.25, np.float32)
    return ids, probs, list(range(len(firsts)))


def test_an_unseen_key_has_no_row() -> None:
    assert RowTable(4, 3).get(0) is None
    assert CopyLogit(3).row(-1, 0) is None


def test_the_most_recent_row_of_a_key_stays() -> None:
    table = RowTable(4, 3)
    table.store([5, 6, 5], *rows(10, 20, 30))
    assert table.get(5) == ([30, 31, 32], [0.25] * 3)
    assert table.get(6) == ([20, 21, 22], [0.25] * 3)


def test_the_least_recently_stored_key_is_dropped() -> None:
    table = RowTable(2, 3)
    table.store([1, 2], *rows(10, 20))
    table.store([1], *rows(11))
    table.store([3], *rows(30))
    assert table.get(2) is None
    assert table.get(1) is not None
    assert len(table) == 2


def test_more_keys_at_once_than_places_leave_the_last_ones_right() -> None:
    table = RowTable(2, 3)
    table.store([1, 2, 3, 4, 1], *rows(10, 20, 30, 40, 50))
    assert [table.get(key) and table.get(key)[0][0] for key in (1, 2, 3, 4)] == [50, None, None, 40]


def test_missing_columns_have_no_probability_and_surplus_ones_are_dropped() -> None:
    table = RowTable(2, 3)
    table.store([1], *rows(10, width=5))
    assert table.get(1) == ([10, 11, 12], [0.25] * 3)
    table.store([1], *rows(40, width=1))
    ids, probs = table.get(1)
    assert (ids[0], probs) == (40, [0.25, 0.0, 0.0])


def test_a_row_of_both_tokens_goes_before_one_of_the_last() -> None:
    table = CopyLogit(3)
    table.learn([(7, 1), (8, 1)], *rows(10, 20))
    assert table.row(7, 1)[0][0] == 10
    assert table.row(9, 1)[0][0] == 20
    assert table.one_token_row(1)[0][0] == 20
    assert table.two_token_row(9, 1) is None


def test_two_token_keys_can_be_left_out() -> None:
    table = CopyLogit(3, two_token_keys=False)
    table.learn([(7, 1), (8, 1)], *rows(10, 20))
    assert table.row(7, 1)[0][0] == 20
    assert table.two_token_row(7, 1) is None
    assert not table.has_two_token_keys
    table.clear()
    assert table.row(7, 1) is None


def test_the_start_of_a_text_is_a_key_of_its_own() -> None:
    table = CopyLogit(3)
    table.learn([(-1, 1), (0, 1)], *rows(10, 20))
    assert table.row(-1, 1)[0][0] == 10
    assert table.row(0, 1)[0][0] == 20


def test_learning_nothing_is_fine_and_clear_forgets() -> None:
    table = CopyLogit(3)
    table.learn([], np.zeros((0, 3), np.int32), np.zeros((0, 3), np.float32), [])
    table.learn([(1, 2)], *rows(10))
    table.clear()
    assert table.row(1, 2) is None


@pytest.mark.parametrize("two_token_keys", [True, False])
def test_a_part_has_the_rows_that_were_learned_in_it(two_token_keys: bool) -> None:
    table = CopyLogit(3, two_token_keys=two_token_keys)
    # The text is 1 2 1 3 1 2: its last two rows take the keys of earlier ones.
    table.learn([(-1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 2)], *rows(*range(10, 70, 10)))
    part = table.part([1, 2, 1, 3])
    assert part.one_token_row(3)[0][0] == 40
    assert part.one_token_row(1) is None
    assert part.one_token_row(2) is None
    assert part.has_two_token_keys == two_token_keys
    if two_token_keys:
        first = [part.two_token_row(a, b) for a, b in ((-1, 1), (1, 2), (2, 1), (1, 3), (3, 1))]
        assert [row and row[0][0] for row in first] == [10, None, 30, 40, None]
    assert table.one_token_row(2)[0][0] == 60


def test_only_seen_keys_cost_memory_and_it_levels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_logit, "_MAX_ONE_TOKEN_ROWS", 500)
    monkeypatch.setattr(copy_logit, "_MAX_TWO_TOKEN_ROWS", 500)
    table = CopyLogit(8)
    empty = table.size_bytes()
    sizes = []
    for start in range(0, 10_000, 1_000):
        keys = range(start, start + 1_000)
        table.learn([(k, k) for k in keys], *rows(*keys, width=8))
        sizes.append(table.size_bytes())
    assert empty < 20_000
    assert max(sizes[1:]) <= 1.1 * sizes[0] < 300_000
