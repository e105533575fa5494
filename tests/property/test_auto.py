"""The cost-aware drafter and its planner, over any text and any curve."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer_local.books.book_set import BookSet
from racer_local.books.phrase_build import SourceText, build_book
from racer_local.config import DraftConfig
from racer_local.drafting.auto.drafter import AutoDrafter
from racer_local.drafting.auto.occurrences import OccurrenceIndex
from racer_local.drafting.auto.planner import StepTimes, plan
from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.drafting.make import make_drafter
from racer_local.measuring.cost import CostCurve, CostModel
from racer_local.speculation.acceptance import verify
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import DraftTree, NodeId, Source, TokenId

N_VOCAB = 12
STEPS = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40)


def times_of(steps: list[float]) -> list[float]:
    return [1.0, *np.cumsum([1.0, *steps]).tolist()]


def row_after(text: list[int], seed: int) -> list[int]:
    order = list(range(N_VOCAB))
    random.Random(str((seed, text[-2:]))).shuffle(order)
    return order


def rows_of(texts: list[list[int]], index: list[int], width: int, seed: int) -> Rows:
    ids = np.array([row_after(text, seed)[:width] for text in texts], np.int32)
    probs = np.tile(0.6 ** np.arange(1, width + 1), (len(index), 1)).astype(np.float32)
    return Rows(np.array(index, np.int32), ids.reshape(len(index), width), probs)


def shelf_of(seed: int) -> BookSet:
    """A book of what this target would say."""
    text = [0]
    while len(text) < 200:
        text.append(row_after(text, seed)[0])
    tokens = np.array(text, np.int32)
    return BookSet([build_book([SourceText("text", 900, 1, tokens)], "any", N_VOCAB)])


def snapshot(tree: DraftTree) -> tuple[list[int], list[int], list[float]]:
    return tree.tokens, tree.parents, tree.probs


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    prompt=st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=20),
    budgets=st.lists(st.integers(0, 40), min_size=4, max_size=20),
    steps=STEPS,
    breadth=st.integers(1, 8),
    has_memory=st.booleans(),
    has_book=st.booleans(),
    slowness=st.floats(0.2, 5.0),
)
def test_any_text_is_drafted_soundly_and_the_output_is_plain(
    seed: int,
    prompt: list[int],
    budgets: list[int],
    steps: list[float],
    breadth: int,
    has_memory: bool,
    has_book: bool,
    slowness: float,
) -> None:
    curve = times_of([*steps, 0.1])
    cost = CostModel([(n, 0.01 * t) for n, t in enumerate(curve) if n], n_max=len(curve) - 1)
    memory = RowMemory("any") if has_memory else None
    if memory is not None:
        other = rows_of([[0], [0, 1], [1, 2]], [0, 1, 2], 8, seed + 1)
        memory.fill(np.array([0, 1, 2], np.int32), other.ids, other.probs)
    config = DraftConfig(mode="auto", breadth=breadth)
    drafter = make_drafter(config, cost, memory, books=shelf_of(seed) if has_book else None)
    assert isinstance(drafter, AutoDrafter)
    drafter.feed(prompt)
    wanted = drafter.wanted_rows(prompt).tolist()
    drafter.learn(rows_of([prompt[: i + 1] for i in wanted], wanted, breadth, seed))
    text = [*prompt, row_after(prompt, seed)[0]]
    drafter.feed(text[-1:])
    for budget in budgets:
        tree = drafter.draft(budget)
        tree.check(N_VOCAB)
        assert tree.tokens[0] == text[-1]
        assert tree.n_drafted <= budget
        assert all(0 <= prob <= 1 for prob in tree.probs)
        assert all(
            tree.probs[n] <= tree.probs[tree.parents[n]] + 1e-12 for n in range(1, len(tree))
        )
        assert snapshot(drafter.draft(budget)) == snapshot(tree)
        below = [text[:-1] + [tree.tokens[n] for n in tree.path(node)] for node in range(len(tree))]
        path, token = verify(tree, lambda node, b=below: row_after(b[node], seed)[0])
        rows = rows_of(below, list(range(len(tree))), drafter.row_width, seed)
        drafter.observe_step(len(tree), len(text), slowness * 0.01 * len(tree))
        drafter.accept(StepOutcome(tree, path, token, rows if drafter.row_width else None))
        text += [tree.tokens[node] for node in path[1:]] + [token]
    plain = list(prompt)
    while len(plain) < len(text):
        plain.append(row_after(plain, seed)[0])
    assert text == plain


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    prompt=st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=20),
    budgets=st.lists(st.integers(1, 30), min_size=4, max_size=20),
    is_empty=st.booleans(),
)
def test_a_book_that_has_nothing_to_say_changes_nothing(
    seed: int, prompt: list[int], budgets: list[int], is_empty: bool
) -> None:
    foreign = np.arange(N_VOCAB, N_VOCAB + 60, dtype=np.int32)
    silent = build_book([SourceText("text", 900, 1, foreign)], "any", 100)
    shelf = BookSet([] if is_empty else [silent])
    # One curve each: it learns from the steps.
    drafters = [
        make_drafter(
            DraftConfig(mode="auto"), CostModel([(1, 0.01), (16, 0.012)], n_max=40), books=books
        )
        for books in (None, shelf)
    ]
    text = [*prompt, row_after(prompt, seed)[0]]
    for drafter in drafters:
        drafter.feed(prompt)
        drafter.feed(text[-1:])
    for budget in budgets:
        tree, other = (drafter.draft(budget) for drafter in drafters)
        assert snapshot(other) == snapshot(tree)
        assert other.sources == tree.sources
        below = [text[:-1] + [tree.tokens[n] for n in tree.path(node)] for node in range(len(tree))]
        path, token = verify(tree, lambda node, b=below: row_after(b[node], seed)[0])
        for drafter in drafters:
            assert isinstance(drafter, AutoDrafter)
            rows = rows_of(below, list(range(len(tree))), drafter.row_width, seed)
            drafter.observe_step(len(tree), len(text), 0.01)
            drafter.accept(StepOutcome(tree, path, token, rows if drafter.row_width else None))
        text += [tree.tokens[node] for node in path[1:]] + [token]


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32), steps=STEPS, budget=st.integers(0, 30), sharp=st.floats(0.5, 4.0)
)
def test_growing_stops_early_without_missing_the_best_tree(
    seed: int, steps: list[float], budget: int, sharp: float
) -> None:
    def expand(tree: DraftTree, node: NodeId) -> list[tuple[float, TokenId, Source]]:
        path = [tree.tokens[n] for n in tree.path(node)]
        rng = random.Random(str((seed, path)))
        shares = [rng.random() ** sharp for _ in range(4)]
        unit = rng.random() / sum(shares)
        return [(share * unit, token, Source.LOGITS) for token, share in enumerate(shares)]

    step = StepTimes(times_of(steps))
    tree = plan(9, budget, step, expand)
    # All of it: every node is grown, whatever it may bring, then cut by trying all.
    limit = min(budget, len(step.times) - 2)
    free = StepTimes([1.0, *(1.0 + 1e-9 * n for n in range(limit + 1))])
    full = plan(9, limit, free, expand) if limit > 0 else DraftTree(9)
    rates = [(1 + sum(full.probs[1 : n + 1])) / step.times[n + 1] for n in range(len(full))]
    reached = (1 + sum(tree.probs[1:])) / step.times[len(tree)]
    assert reached == pytest.approx(max(rates))


@given(steps=STEPS)
def test_the_least_slope_is_that_of_trying_all(steps: list[float]) -> None:
    times = times_of(steps)
    step = StepTimes(times)
    for n in range(1, len(times) - 1):
        least = min((times[m] - times[n]) / (m - n) for m in range(n + 1, len(times)))
        assert step.slopes[n] == pytest.approx(least, abs=1e-12)


@given(text=st.lists(st.integers(0, 3), min_size=2, max_size=80))
def test_occurrences_are_those_of_a_brute_force_search(text: list[int]) -> None:
    index = OccurrenceIndex()
    for token in text:
        index.append(token)
    expected = []
    for end in range(len(text) - 2, 0, -1):
        n = 0
        while n < min(24, end + 1) and text[end - n] == text[-1 - n]:
            n += 1
        if n >= 2:
            expected.append((end, n))
    assert index.latest() == expected[:24]
    for token in range(4):
        after = dict(index.advance(index.latest(), text[-1], token))
        direct = OccurrenceIndex()
        for each in [*text, token]:
            direct.append(each)
        for position, length in direct.latest():
            # Longer by one than a match that was cut at the limit.
            if position in after and position < len(text):
                assert after[position] in (length, length + 1)


def test_memory_stays_bounded_whatever_comes() -> None:
    drafter = AutoDrafter(DraftConfig(mode="auto"), CostModel.of_curve(CostCurve([1, 2], [1, 1.9])))
    rng = np.random.default_rng(0)
    sizes = []
    for _ in range(5):
        for _ in range(30):
            tokens = rng.integers(0, 49_152, 500)
            start = drafter._index.n_tokens
            drafter.feed(tokens.tolist())
            index = np.arange(start, start + 500, dtype=np.int32)
            ids = rng.integers(0, 49_152, (500, 8)).astype(np.int32)
            drafter.learn(Rows(index, ids, np.full((500, 8), 0.1, np.float32)))
        sizes.append(drafter.size_bytes())
    assert max(sizes) <= 16 * 1024 * 1024
    assert max(sizes[2:]) <= max(sizes[:2]) * 1.3
