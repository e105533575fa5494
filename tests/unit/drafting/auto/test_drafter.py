"""The cost-aware drafter: what it drafts, learns, keeps and forgets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from racer_local.config import DraftConfig
from racer_local.drafting.auto.drafter import AutoDrafter
from racer_local.drafting.auto.estimate import Estimator
from racer_local.drafting.auto.occurrences import OccurrenceIndex
from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.drafting.auto.row_store import RowStore
from racer_local.drafting.make import make_drafter
from racer_local.measuring.cost import CostCurve, CostModel
from racer_local.speculation.acceptance import verify
from racer_local.speculation.drafter import Rows, StepObserver, StepOutcome
from racer_local.speculation.tree import DraftTree, Source

FLAT = CostModel.of_curve(CostCurve([1, 64], [1.0, 1.5]), 65)
STEEP = CostModel.of_curve(CostCurve([1, 2], [1.0, 1.9]), 65)
STORY = [*range(10, 40), *range(50, 60)]


def drafter(
    cost: CostModel = FLAT, budget: int = 64, memory: RowMemory | None = None
) -> AutoDrafter:
    made = make_drafter(DraftConfig(mode="auto", budget=budget), cost, memory)
    assert isinstance(made, AutoDrafter)
    return made


def rows_at(index: list[int], ids: list[list[int]], first: float = 0.7) -> Rows:
    probs = np.tile(first * 0.3 ** np.arange(8), (len(ids), 1)).astype(np.float32)
    return Rows(np.array(index, np.int32), np.array(ids, np.int32), probs)


def principal(tree: DraftTree) -> list[int]:
    node, tokens = 0, []
    while children := tree.children(node):
        node = children[0]
        tokens.append(tree.tokens[node])
    return tokens


def run(d: AutoDrafter, text: list[int], seconds: float | None = None) -> int:
    """Generate ``text`` after what it knows; returns the steps."""
    done = steps = 0
    while done < len(text):
        tree = d.draft(min(64, len(text) - done - 1))
        path, token = verify(tree, lambda n, t=tree, at=done: text[at + t.depths[n]])
        if seconds is not None:
            # More than in proportion to its tokens: drafting can never pay.
            n = len(tree)
            d.observe_step(n, done, seconds * (n if n == 1 else 1.5 * n))
        d.accept(StepOutcome(tree, path, token, None))
        done += len(path)
        steps += 1
    return steps


def test_a_text_that_repeats_itself_is_copied() -> None:
    d = drafter()
    d.feed([*STORY, 1, 2, *STORY[:8]])
    tree = d.draft(64)
    assert principal(tree)[:12] == STORY[8:20]
    assert tree.sources[1] == Source.RETRIEVAL
    assert 0.5 < tree.probs[1] <= 1.0


def test_rows_are_drafted_from_where_nothing_was_seen_before() -> None:
    d = drafter()
    d.feed([5, 6, 7, 5])
    d.learn(rows_at([0, 1, 2], [list(range(91 + 10 * i, 99 + 10 * i)) for i in range(3)]))
    tree = d.draft(64)
    assert principal(tree)[0] == 91
    assert set(tree.sources[1:]) == {Source.LOGITS}


def test_the_second_latest_row_of_a_token_is_asked_too() -> None:
    d = drafter()
    d.feed([5, 1, 5, 2, 5])
    first, second = list(range(100, 108)), list(range(200, 208))
    d.learn(rows_at([0, 2], [first, second]))
    drafted = {d.draft(64).tokens[n] for n in range(1, len(d.draft(64)))}
    assert 200 in drafted
    assert 100 in drafted
    store = RowStore()
    probs = np.full((3, 2), 0.5, np.float32)
    store.learn([(1, 9), (2, 9), (3, 9)], np.array([[1, 2], [3, 4], [5, 6]], np.int32), probs)
    assert list(store.one(9) or {}) == [5, 6]
    assert list(store.old(9) or {}) == [3, 4]
    store.learn([(4, 9)], np.array([[7, 8]], np.int32), probs[:1])
    assert list(store.old(9) or {}) == [5, 6]


def test_a_drafter_begins_from_another_with_the_rows_that_were_learned_there() -> None:
    old, new = drafter(), drafter()
    old.feed([5, 1, 5, 2, 7, 1, 5, 3])
    old.learn(rows_at([0, 1, 2, 3, 4, 5, 6], [[100 * (n + 1)] * 8 for n in range(7)]))
    for heir in (new, old):
        heir.begin_from(old, [5, 1, 5, 2, 7])
        store = heir._rows
        assert heir._index.text.tolist() == [5, 1, 5, 2, 7]
        assert list(store.two(-1, 5) or {}) == [100]
        assert list(store.two(5, 2) or {}) == [400]
        # The rows of these have been learned anew behind the part.
        assert store.two(1, 5) is None
        assert store.one(1) is store.one(5) is store.old(5) is None
        assert list(store.one(7) or {}) == [500]
    old.begin_from(old, [])
    assert old._rows.one(7) is None


def test_an_expensive_machine_drafts_less() -> None:
    text = [*STORY, 1, *STORY[:3]]
    sizes = []
    for cost in (STEEP, FLAT):
        d = drafter(cost)
        d.feed(text)
        sizes.append(d.draft(64).n_drafted)
    assert sizes[0] < sizes[1]


def test_unknown_words_and_empty_budgets_are_plain_decoding() -> None:
    d = drafter()
    with pytest.raises(ValueError, match="the text is empty"):
        d.draft(4)
    d.feed([1, 2, 3])
    assert d.draft(64).n_drafted == 0
    d.feed([1, 2])
    assert d.draft(0).n_drafted == 0
    assert d.draft(-1).n_drafted == 0
    with pytest.raises(ValueError, match="token -4 is negative"):
        d.feed([3, -4])


def test_the_rows_of_a_step_are_not_known_to_the_estimates_of_that_step() -> None:
    seen: list[list[tuple[int, ...]]] = []

    class Spy(Estimator):
        def learn(self, cells, probs, taken) -> None:  # type: ignore[no-untyped-def]  # test
            seen.append(list(cells))

    d = AutoDrafter(DraftConfig(mode="auto"), FLAT, None, Spy())
    d.feed([1, 2])
    answer = rows_at([0], [[7, 8, 9, 10, 11, 12, 13, 14]])
    d.accept(StepOutcome(DraftTree(2), [0], 7, answer))
    # The row that names 7 came with the step: there was no candidate before it.
    assert seen == [[]]
    d.feed([2])
    assert 7 in d.draft(64).tokens


def test_every_emitted_token_teaches_drafted_or_not() -> None:
    d = drafter(STEEP)
    d.feed([*STORY, 1, *STORY[:4]])
    before = list(d.estimator.weights)
    root = DraftTree(STORY[3])
    d.accept(StepOutcome(root, [0], STORY[4], None))
    assert d.estimator.weights != before


def test_a_new_text_keeps_the_estimates_and_nothing_of_the_old_text() -> None:
    d = drafter()
    d.feed(STORY)
    run(d, STORY)
    learned = list(d.estimator.weights)
    d.begin()
    assert d.estimator.weights == learned
    d.feed([*STORY[:6]])
    assert d.draft(64).n_drafted == 0


def test_given_timings_teach_the_cost_model_and_the_guard() -> None:
    d = drafter(CostModel([(1, 0.01), (2, 0.01003)], n_max=65))
    d.feed([*STORY, 1, *STORY[:5]])
    n_at_first = d.draft(64).n_drafted
    text = [*STORY[5:], *STORY * 40, 1, *STORY[:5]]
    n_steps = run(d, text, seconds=0.01)
    assert n_at_first > 8
    assert d.cost.n_observed == n_steps
    assert d.cost.times(30)[20] > 3 * d.cost.times(1)[1]
    assert d.guard.gain < 0


def test_only_it_asks_for_timings() -> None:
    assert isinstance(drafter(), StepObserver)
    assert not isinstance(make_drafter(DraftConfig(mode="racer")), StepObserver)


def test_sleep_means_no_rows_and_no_drafts_and_ends() -> None:
    d = drafter()
    d.feed([*STORY, *STORY[:5]])
    while not d.guard.is_asleep:
        d.guard.observe(4, 1, 3.0, 1.0, 0.0)
    assert d.row_width == 0
    assert d.draft(64).n_drafted == 0
    for token in STORY[5:25]:
        d.accept(StepOutcome(d.draft(64), [0], token, None))
    assert d.row_width == 8
    # What came meanwhile is known.
    assert principal(d.draft(64))[:3] == STORY[25:28]


def test_remembered_rows_are_used_where_the_text_has_none() -> None:
    memory = RowMemory("m")
    tokens = np.array([5, 6, 7], np.int32)
    ids = np.array([[6, *range(80, 87)], [7, *range(70, 77)], [8, *range(60, 67)]], np.int32)
    memory.fill(tokens, ids, np.tile(0.6 * 0.3 ** np.arange(8), (3, 1)).astype(np.float32))
    with_memory, without = drafter(memory=memory), drafter()
    for d in (with_memory, without):
        d.feed([1, 5, 6])
    assert without.draft(64).n_drafted == 0
    tree = with_memory.draft(64)
    assert principal(tree)[:2] == [7, 8]
    assert set(tree.sources[1:]) == {Source.LOGITS}
    assert with_memory.size_bytes() > without.size_bytes()


def test_prompt_rows_are_wanted_once_per_pair_of_tokens() -> None:
    d = drafter()
    assert d.wanted_rows([1, 2, 1, 2, 3]).tolist() == [0, 2, 3, 4]
    assert d.wanted_rows([]).tolist() == []


def test_where_checking_is_dear_only_rows_of_repeated_pairs_are_read() -> None:
    d = drafter(STEEP)
    d.feed([1, 2, 1, 2, 3])
    assert d.wanted_rows([1, 2, 1, 2, 3]).tolist() == [3]
    # What was said before counts as well; the pair across the border is not looked at.
    d.feed([9, 2, 3, 9, 2])
    assert d.wanted_rows([9, 2, 3, 9, 2]).tolist() == [2, 3, 4]
    assert d.wanted_rows([]).tolist() == []


def after_new_words(cost: CostModel, overhead_s: float) -> AutoDrafter:
    """A drafter that went through new words with so much overhead at each step."""
    d = drafter(cost)
    d.feed(STORY[:30])
    for token in range(100, 120):
        rows = rows_at([0], [list(range(token + 1, token + 9))]) if d.row_width else None
        d.observe_step(1, 40, 1.0, overhead_s)
        d.accept(StepOutcome(DraftTree(token - 1), [0], token, rows))
    return d


def test_where_drafting_is_dear_itself_it_saves_what_brings_little() -> None:
    laptop = CostModel.of_curve(CostCurve([1, 2, 8], [1.0, 1.3, 2.6]), 65)
    dear, light = after_new_words(laptop, 0.02), after_new_words(laptop, 0.005)
    cheap = after_new_words(FLAT, 0.02)
    # After new words nothing is right, so that rows are not wanted.
    assert (dear.row_width, light.row_width, cheap.row_width) == (0, 8, 8)
    # A likely word that the text has, after one that it has not yet.
    for d in (dear, cheap):
        d.learn(rows_at([49], [list(range(10, 18))], first=0.99))
    assert dear.draft(64).n_drafted == 0
    assert cheap.draft(64).n_drafted > 0
    before = dear.estimator.weights.copy()
    dear.accept(StepOutcome(dear.draft(64), [0], 10, None))
    assert dear.estimator.weights == before
    # What the text has already is drafted as ever.
    run(dear, STORY[1:12])
    assert principal(dear.draft(64))[:1] == [STORY[12]]
    assert dear.row_width == 8


def test_without_a_cost_model_it_still_drafts() -> None:
    made = make_drafter(DraftConfig(mode="auto", budget=8))
    made.feed([*STORY, 1, *STORY[:10]])
    assert made.draft(64).n_drafted > 2


def test_occurrences_are_found_with_their_lengths_and_followed() -> None:
    index = OccurrenceIndex()
    for token in [1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]:
        index.append(token)
    assert index.latest() == [(6, 2), (2, 3)]
    assert index.advance(index.latest(), 3, 4) == [(3, 4)]
    assert index.advance(index.latest(), 3, 5) == [(7, 3)]
    # Two tokens that are new together: matches of these two alone.
    assert index.advance(index.latest(), 9, 2) == [(5, 2)]
    assert index.advance([], 7, 7) == []


def test_old_text_is_dropped_and_positions_stay_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("racer_local.drafting.auto.occurrences._MAX_TEXT", 16)
    d = drafter()
    for start in range(0, 400, 40):
        d.feed(list(range(start, start + 40)))
        assert len(d._index.text) < 32
    assert d._index.n_tokens == 400
    d.learn(rows_at([3, 398, 399], [[900 + i for i in range(8)]] * 3))
    assert principal(d.draft(64))[0] == 900


def test_nothing_here_reads_files(tmp_path: Path) -> None:
    d = drafter()
    d.feed(STORY)
    run(d, STORY)
    assert not list(tmp_path.iterdir())
