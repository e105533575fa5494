"""Which earlier texts may be drafted from."""

from __future__ import annotations

import numpy as np
import pytest

from racer_local.config import DraftConfig, DraftMemory
from racer_local.drafting.guarded_drafter import GuardedDrafter
from racer_local.drafting.make import make_drafter
from racer_local.errors import ConfigError
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
