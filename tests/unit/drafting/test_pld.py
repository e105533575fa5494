"""Prompt lookup."""

from __future__ import annotations

import numpy as np
import pytest

from racer_local.config import DraftConfig
from racer_local.drafting import pld
from racer_local.drafting.pld import PromptLookupDrafter
from racer_local.speculation.drafter import Rows, StepOutcome


def drafter_of(text: list[int], **settings: int) -> PromptLookupDrafter:
    drafter = PromptLookupDrafter(DraftConfig(mode="pld", **settings))
    drafter.feed(text)
    return drafter


def test_the_chain_follows_the_most_recent_earlier_occurrence() -> None:
    tree = drafter_of([1, 2, 3, 1, 2, 4, 5, 1, 2]).draft(2)
    assert tree.tokens == [2, 4, 5]
    assert tree.parents == [-1, 0, 1]


def test_a_longer_ngram_goes_before_a_more_recent_shorter_one() -> None:
    tree = drafter_of([9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2]).draft(1)
    assert tree.tokens == [2, 3]


def test_the_chain_ends_where_the_text_ends() -> None:
    assert drafter_of([1, 2, 1, 2]).draft(10).tokens == [2, 1, 2]


def test_without_an_earlier_occurrence_nothing_is_drafted() -> None:
    assert drafter_of([1, 2, 3]).draft(8).n_drafted == 0
    assert drafter_of([5]).draft(8).n_drafted == 0


def test_shorter_ngrams_than_asked_for_are_not_looked_up() -> None:
    text = [1, 2, 3, 4, 2]
    assert drafter_of(text, min_match=1).draft(1).n_drafted == 1
    assert drafter_of(text, min_match=2).draft(1).n_drafted == 0
    assert drafter_of([1, 2, 3, 4, 1, 2, 3], min_match=4).draft(1).n_drafted == 0


def test_no_budget_means_no_draft() -> None:
    assert drafter_of([1, 2, 1, 2]).draft(0).n_drafted == 0


def test_accepted_tokens_and_the_next_one_join_the_text() -> None:
    drafter = drafter_of([1, 2, 3, 4, 1, 2])
    tree = drafter.draft(2)
    drafter.accept(StepOutcome(tree, [0, 1], 9, None))
    assert drafter.draft(4).tokens == [9]
    drafter.feed([2, 3])
    assert drafter.draft(1).tokens == [3, 9]


def test_it_wants_no_rows_and_learns_nothing_from_them() -> None:
    drafter = drafter_of([1, 2, 1, 2])
    drafter.learn(Rows(np.zeros(0, np.int32), np.zeros((0, 0), np.int32), np.zeros((0, 0))))
    assert drafter.row_width == 0
    assert drafter.wanted_rows([1, 2]).tolist() == []


def test_begin_forgets_and_an_empty_text_is_refused() -> None:
    drafter = drafter_of([1, 2, 1, 2])
    drafter.begin()
    with pytest.raises(ValueError, match="the text is empty"):
        drafter.draft(1)


def test_memory_is_bounded_and_only_recent_text_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pld, "_MAX_TEXT", 1_000)
    drafter = drafter_of([70_000, 70_001, 70_002])
    for start in range(0, 20_000, 7):
        drafter.feed(range(start, start + 7))
        assert drafter.size_bytes() <= 8_000
    drafter.feed([19_500, 19_501])
    assert drafter.draft(2).tokens == [19_501, 19_502, 19_503]
    drafter.feed([70_000, 70_001])
    assert drafter.draft(2).n_drafted == 0
    drafter.feed(list(range(5_000)))
    drafter.feed([4_500, 4_501])
    assert drafter.draft(1).tokens == [4_501, 4_502]
