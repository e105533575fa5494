"""Which earlier texts may be drafted from."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from racer_local.config import DraftConfig, DraftMemory
from racer_local.drafting.guarded_drafter import GuardedDrafter
from racer_local.drafting.make import make_drafter
from racer_local.errors import ConfigError
from racer_local.measuring.cost import CostModel
from racer_local.speculation.stats import Stats

SONG = [1, 2, 3, 4, 5, 6, 7, 8]


def drafted_after_another_text(memory: DraftMemory) -> list[int]:
    drafter = GuardedDrafter(make_drafter(DraftConfig(mode="racer")), "racer", 8, memory)
    drafter.start(list(SONG), Stats())
    drafter.start([30, 31, 3, 4], Stats())
    return drafter.draft(4, 8, 100, 8).tokens[1:]


def test_other_texts_are_drafted_from_only_where_that_is_allowed() -> None:
    assert 5 in drafted_after_another_text("server")
    assert drafted_after_another_text("conversation") == []
    assert drafted_after_another_text("off") == []


def test_rows_are_learned_at_their_places_behind_other_texts() -> None:
    drafter = GuardedDrafter(make_drafter(DraftConfig(mode="logits")), "logits", 8, "server")
    drafter.start(list(SONG), Stats())
    drafter.start([30, 31, 30, 40, 31], Stats())
    logits = np.zeros((1, 100), np.float32)
    logits[0, 77] = 9
    # After token 30, at place 2 of this text, comes 77; so it does wherever 30 comes again.
    drafter.learn(np.array([2], np.int32), logits)
    drafter.start([30, 31, 30, 40, 31, 31, 30], Stats())
    assert drafter.draft(30, 8, 100, 8).tokens[1] == 77


def test_an_unknown_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="draft memory"):
        DraftConfig(memory="all")  # type: ignore[arg-type]


class _Contexts(CostModel):
    """Notes the lengths of context that costs are predicted for."""

    def times(self, n_max: int, n_context: int = 0) -> list[float]:
        self.asked = n_context
        return super().times(n_max, n_context)


@pytest.mark.parametrize("memory", get_args(DraftMemory))
def test_costs_are_predicted_for_the_context_not_for_all_that_was_learned(
    memory: DraftMemory,
) -> None:
    cost = _Contexts([(1, 1.0), (9, 1.5)], n_max=9)
    drafter = GuardedDrafter(make_drafter(DraftConfig(mode="auto"), cost), "auto", 8, memory)

    def context_of(prompt: list[int]) -> int:
        drafter.start(prompt, Stats())
        drafter.draft(prompt[-1], 8, 5000, 8)
        return cost.asked

    text = [i % 7 for i in range(2000)]
    for first in range(10, 20):
        assert context_of([first, *text]) == 2001
    assert context_of([19, *text, *text]) == 4001  # the same conversation goes on
    assert context_of([19, *text[:600]]) == 601  # and is shortened
    drafter.forget()
    assert context_of(text[:1200]) == 1200
