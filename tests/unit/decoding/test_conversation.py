"""Which conversation a prompt goes on with, and what is kept of the others."""

from __future__ import annotations

import pytest
from fakes import ScriptedTarget

from racer_local.config import DraftConfig
from racer_local.decoding.conversation import Conversations
from racer_local.drafting.guarded_drafter import GuardedDrafter
from racer_local.drafting.make import make_drafter
from racer_local.speculation.stats import Stats


class Texts:
    """Conversations on a scripted slot; reading a prompt puts it into the cache."""

    def __init__(self, n_saved: int = 4, max_bytes: int = 2**20, *, is_shared: bool = False):
        self.slot = ScriptedTarget(n_vocab=10_000, n_ctx=10_000)
        one = self.make()
        make = (lambda: one) if is_shared else self.make
        self.kept = Conversations(self.slot, make, n_saved, max_bytes)

    @staticmethod
    def make() -> GuardedDrafter:
        return GuardedDrafter(make_drafter(DraftConfig(mode="racer")), "racer", 8)

    def read(self, prompt: list[int]) -> int:
        """Read a prompt; returns how much of it was in the cache."""
        self.kept.enter(prompt)
        n_reused = len(self.slot.tokens)
        assert self.slot.tokens == prompt[:n_reused]
        assert n_reused < len(prompt)
        self.slot.tokens = list(prompt)
        self.kept.drafter.start(prompt, Stats())
        return n_reused


@pytest.fixture
def texts() -> Texts:
    return Texts()


def text(start: int, n: int = 100) -> list[int]:
    return list(range(start, start + n))


def test_a_conversation_finds_its_cells_and_its_drafter_again(texts: Texts) -> None:
    texts.read(text(0))
    chat = texts.kept.drafter
    assert texts.read(text(500)) == 0
    side = texts.kept.drafter
    assert side is not chat
    assert texts.read([*text(0), 7, 8]) == 100
    assert texts.kept.drafter is chat
    assert texts.read([*text(500), 7]) == 100
    assert texts.kept.drafter is side
    assert (chat.n_known, side.n_known) == (102, 101)


@pytest.mark.parametrize("n_lost", [1, 5, 12])
def test_an_end_that_was_left_is_dropped(texts: Texts, n_lost: int) -> None:
    texts.read(text(0))
    drafter = texts.kept.drafter
    prompt = [*text(0)[:-n_lost], 7, 8]
    assert texts.read(prompt) == 100 - n_lost
    assert texts.kept.drafter is drafter
    assert drafter.n_known == len(prompt)
    assert len(texts.kept._kept) == 1


def test_a_branch_leaves_the_text_it_comes_from_as_it_is(texts: Texts) -> None:
    texts.read(text(0))
    old = texts.kept.drafter
    assert texts.read([*text(0, 60), *text(700, 60)]) == 60
    assert texts.kept.drafter is not old
    assert texts.read([*text(0), 7]) == 100
    assert texts.kept.drafter is old
    # Of a saved text too.
    texts.read(text(300))
    assert texts.read([*text(0, 50), *text(800, 60)]) == 50
    assert texts.read([*text(0), 7, 8]) == 101
    assert texts.kept.drafter is old


def test_of_several_texts_the_one_that_shares_most_is_taken(texts: Texts) -> None:
    texts.read([*text(0, 50), *text(500)])
    long = texts.kept.drafter
    texts.read([*text(0, 50), *text(700)])
    texts.read(text(900))
    assert texts.read([*text(0, 50), *text(500), 3]) == 150
    assert texts.kept.drafter is long


def test_a_saved_text_must_do_clearly_better_than_the_cache(texts: Texts) -> None:
    texts.read([*text(0, 90), *text(500, 60)])
    texts.read([*text(0, 80), *text(700, 60)])
    here = texts.kept.drafter
    # Ten tokens more are read sooner than a state is copied.
    assert texts.read([*text(0, 90), *text(700, 1)]) == 80
    assert texts.kept.drafter is not here


def test_few_tokens_are_not_kept(texts: Texts) -> None:
    texts.read(text(0, 31))
    texts.read(text(500))
    assert len(texts.kept._kept) == 1
    assert texts.read(text(0, 31)) == 0


def test_the_least_recently_used_go_first() -> None:
    texts = Texts(n_saved=2)
    for start in (0, 1000, 2000):
        texts.read(text(start))
    assert texts.read([*text(0), 1]) == 100
    texts.read(text(3000))
    assert texts.read([*text(1000), 1]) == 0
    assert texts.read([*text(0), 1, 2]) == 101


def test_states_stay_under_the_limit_of_bytes_and_drafters_stay_without_them() -> None:
    texts = Texts(max_bytes=1000)
    n_bytes = len(texts.slot.save_state())
    for start in (0, 1000, 2000, 3000):
        texts.read(text(start))
        n_bytes = sum(len(kept.state) for kept in texts.kept._kept)
        assert n_bytes <= 1000
    drafters = [kept.drafter for kept in texts.kept._kept]
    assert texts.read([*text(0), 1]) == 0
    assert texts.kept.drafter is drafters[0]
    assert texts.kept.drafter.n_known == 101


def test_where_nothing_is_saved_there_is_one_conversation() -> None:
    texts = Texts(n_saved=0)
    texts.read(text(0))
    drafter = texts.kept.drafter
    assert texts.read([*text(0, 40), *text(700)]) == 40
    assert texts.read([*text(0), 1]) == 40
    assert texts.kept.drafter is drafter


def test_one_drafter_for_all_texts_is_never_begun_from_another() -> None:
    texts = Texts(is_shared=True)
    texts.read(text(0))
    texts.read(text(500))
    assert texts.read([*text(0), 1]) == 100
    assert texts.kept.drafter.n_known == 101


def test_a_slot_that_cannot_rewind_needs_the_whole_text(texts: Texts) -> None:
    texts.slot.can_rewind = False
    texts.read(text(0))
    assert texts.read([*text(0, 80), 7, 8]) == 0
    assert texts.read([*text(0), 7]) == 100


def test_a_state_that_is_refused_costs_reading_and_nothing_else(texts: Texts) -> None:
    texts.read(text(0))
    texts.read(text(500))
    texts.kept._kept[0].state = b"damaged"
    assert texts.read([*text(0), 7]) == 0
    assert texts.read([*text(0), 7, 8]) == 101


def test_what_others_did_to_the_slot_is_seen(texts: Texts) -> None:
    texts.read(text(0))
    drafter = texts.kept.drafter
    texts.slot.rewind(0)
    assert texts.read([*text(0), 7]) == 0
    assert texts.kept.drafter is drafter
    texts.slot.tokens = text(900)
    assert texts.read([*text(900), 7]) == 100


def test_forgetting_leaves_nothing(texts: Texts) -> None:
    texts.read(text(0))
    texts.read(text(500))
    texts.kept.forget()
    assert texts.kept.drafter.n_known == 0
    assert texts.read([*text(0), 7]) == 0


def test_what_is_done_aside_leaves_no_trace(texts: Texts) -> None:
    texts.read(text(500))
    texts.read(text(0))
    drafter = texts.kept.drafter
    with texts.kept.aside():
        assert texts.slot.tokens == []
        texts.kept.use(Texts.make)
        texts.read(text(900))
        texts.kept.forget()
    assert texts.read([*text(900), 7]) == 0
    assert texts.read([*text(0), 7]) == 100
    assert texts.kept.drafter is drafter
    assert texts.read([*text(500), 7]) == 100


def test_other_drafters_for_a_while_leave_the_first_ones_as_they_were(texts: Texts) -> None:
    texts.read(text(0))
    drafter = texts.kept.drafter
    with texts.kept.kept_drafters():
        texts.kept.use(Texts.make)
        assert texts.read([*text(0), 7]) == 100
        assert texts.kept.drafter is not drafter
        texts.read(text(500))
    assert texts.kept.drafter.n_known == 0
    assert texts.read([*text(0), 7, 8]) == 101
    assert texts.kept.drafter is drafter
    assert drafter.n_known == 102
