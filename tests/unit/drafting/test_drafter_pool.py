"""One drafter per conversation."""

from __future__ import annotations

from racer_local.config import DraftConfig
from racer_local.drafting.drafter_pool import DrafterPool
from racer_local.drafting.guarded_drafter import GuardedDrafter
from racer_local.drafting.make import make_drafter
from racer_local.speculation.stats import Stats


def pool(limit: int) -> DrafterPool:
    config = DraftConfig(mode="racer", budget=8)
    return DrafterPool(lambda: GuardedDrafter(make_drafter(config), "racer", 8), limit)


def start(drafters: DrafterPool, prompt: list[int]) -> GuardedDrafter:
    drafter = drafters.pick(prompt)
    drafter.start(prompt, Stats())
    return drafter


def test_a_conversation_finds_its_drafter_again() -> None:
    drafters = pool(3)
    chat = start(drafters, [1, 2, 3])
    side = start(drafters, [9, 8])
    assert chat is not side
    assert start(drafters, [1, 2, 3, 4]) is chat
    assert drafters.latest is chat
    assert (chat.n_known, side.n_known) == (4, 2)


def test_of_several_the_one_that_knows_most_is_taken() -> None:
    drafters = pool(3)
    short = start(drafters, [1, 2])
    long = drafters.pick([7])
    long.start([1, 2, 3], Stats())
    assert drafters.pick([1, 2, 3, 4]) is long
    assert drafters.pick([1, 2, 9]) is short


def test_beyond_the_limit_the_least_recently_used_starts_afresh() -> None:
    drafters = pool(2)
    first, second = start(drafters, [1]), start(drafters, [2])
    start(drafters, [1, 5])
    third = start(drafters, [3])
    assert third is second
    assert third.n_known_of([2]) == 0
    assert first.n_known == 2


def test_one_drafter_alone_is_used_for_everything() -> None:
    drafters = pool(1)
    assert start(drafters, [1]) is start(drafters, [2])


def test_forgetting_leaves_one_that_knows_nothing() -> None:
    drafters = pool(3)
    start(drafters, [1])
    start(drafters, [2])
    drafters.forget()
    assert drafters.latest.n_known == 0
    assert start(drafters, [1]) is drafters.latest
