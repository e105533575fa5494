"""The last-logit ablation, and plain decoding as a drafter."""

from __future__ import annotations

import numpy as np
import pytest

from racer_local.config import DraftConfig
from racer_local.drafting.make import make_drafter
from racer_local.drafting.off import OffDrafter
from racer_local.drafting.racer.last_logit import LastLogitDrafter
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import DraftTree


def rows(index: list[int], *ids: list[int]) -> Rows:
    array = np.array(ids, np.int32)
    return Rows(np.array(index, np.int32), array, np.full(array.shape, 0.3, np.float32))


def test_every_node_has_the_children_of_the_last_row() -> None:
    drafter = LastLogitDrafter(DraftConfig(mode="last-logit", breadth=2))
    drafter.feed([5, 6])
    drafter.learn(rows([0, 1], [1, 2], [3, 4]))
    tree = drafter.draft(6)
    tree.check()
    assert [tree.tokens[node] for node in tree.children(0)] == [3, 4]
    assert [tree.tokens[node] for node in tree.children(tree.children(0)[0])] == [3, 4]
    assert tree.n_drafted == 6


def test_it_takes_the_row_of_the_last_accepted_node() -> None:
    drafter = LastLogitDrafter(DraftConfig(mode="last-logit", breadth=2))
    drafter.feed([5])
    tree = DraftTree(5)
    drafter.accept(StepOutcome(tree, [0], 7, rows([0], [8, 9])))
    assert drafter.draft(1).tokens == [7, 8]
    drafter.accept(StepOutcome(DraftTree(7), [0], 1, None))
    assert drafter.draft(1).tokens == [1, 8]


def test_without_a_row_it_drafts_nothing_and_without_a_text_it_refuses() -> None:
    drafter = LastLogitDrafter(DraftConfig(mode="last-logit"))
    with pytest.raises(ValueError, match="the text is empty"):
        drafter.draft(1)
    drafter.feed([])
    drafter.feed([5])
    drafter.learn(Rows(np.zeros(0, np.int32), np.zeros((0, 8), np.int32), np.zeros((0, 8))))
    assert drafter.draft(8).n_drafted == 0
    drafter.begin()
    with pytest.raises(ValueError, match="the text is empty"):
        drafter.draft(1)


def test_it_wants_the_last_row_of_a_prompt_only() -> None:
    drafter = LastLogitDrafter(DraftConfig(mode="last-logit", breadth=3))
    assert drafter.row_width == 3
    assert drafter.wanted_rows([1, 2, 3]).tolist() == [2]
    assert drafter.wanted_rows([]).tolist() == []
    assert drafter.size_bytes() < 10_000


def test_off_never_drafts_and_follows_the_text() -> None:
    drafter = make_drafter(DraftConfig(mode="off"))
    assert isinstance(drafter, OffDrafter)
    with pytest.raises(ValueError, match="the text is empty"):
        drafter.draft(1)
    drafter.feed([])
    drafter.feed([1, 2])
    drafter.learn(rows([0], [1]))
    assert drafter.draft(9).tokens == [2]
    drafter.accept(StepOutcome(DraftTree(2), [0], 3, None))
    assert drafter.draft(9).tokens == [3]
    assert (drafter.row_width, drafter.wanted_rows([1]).tolist()) == (0, [])
    assert drafter.size_bytes() == 0
    drafter.begin()
    with pytest.raises(ValueError, match="the text is empty"):
        drafter.draft(1)
