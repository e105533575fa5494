"""Every drafter, over any text: budget, tree invariants, no side effects, plain output."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from racer_local.config import DraftConfig, DraftMode
from racer_local.drafting.make import make_drafter
from racer_local.speculation.acceptance import verify
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import DraftTree

MODES = ["racer", "retrieval", "logits", "last-logit", "pld", "off"]
N_VOCAB = 12


def row_after(text: list[int], seed: int) -> np.ndarray:
    """Rank all tokens after a text of which only the last two count, so that it loops."""
    order = list(range(N_VOCAB))
    random.Random(str((seed, text[-2:]))).shuffle(order)
    return np.array(order, np.int32)


def rows_of(texts: list[list[int]], index: list[int], width: int, seed: int) -> Rows:
    ids = np.array([row_after(text, seed)[:width] for text in texts], np.int32)
    ids = ids.reshape(len(index), width)
    probs = np.tile(0.6 ** np.arange(1, width + 1), (len(index), 1)).astype(np.float32)
    return Rows(np.array(index, np.int32), ids, probs)


def snapshot(tree: DraftTree) -> tuple[list[int], list[int], list[float]]:
    return tree.tokens, tree.parents, tree.probs


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    prompt=st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=20),
    budgets=st.lists(st.integers(0, 40), min_size=4, max_size=24),
    max_nodes=st.integers(10, 80),
    breadth=st.integers(1, 8),
)
def test_any_text_is_drafted_soundly_and_the_output_is_plain(
    mode: DraftMode, seed: int, prompt: list[int], budgets: list[int], max_nodes: int, breadth: int
) -> None:
    config = DraftConfig(mode=mode, max_nodes=max_nodes, breadth=breadth, min_match=1)
    drafter = make_drafter(config)
    drafter.feed(prompt)
    width = drafter.row_width
    wanted = drafter.wanted_rows(prompt).tolist()
    assert wanted == sorted(set(wanted))
    drafter.learn(rows_of([prompt[: i + 1] for i in wanted], wanted, width, seed))
    text = [*prompt, int(row_after(prompt, seed)[0])]
    drafter.feed(text[-1:])
    for budget in budgets:
        tree = drafter.draft(budget)
        tree.check(N_VOCAB)
        assert tree.tokens[0] == text[-1]
        assert tree.n_drafted <= budget
        assert all(0 <= prob <= 1 for prob in tree.probs)
        assert snapshot(drafter.draft(budget)) == snapshot(tree)
        below = [text[:-1] + [tree.tokens[n] for n in tree.path(node)] for node in range(len(tree))]
        path, token = verify(tree, lambda node, b=below: int(row_after(b[node], seed)[0]))
        rows = rows_of(below, list(range(len(tree))), width, seed)
        drafter.accept(StepOutcome(tree, path, token, rows))
        text += [tree.tokens[node] for node in path[1:]] + [token]
    plain = list(prompt)
    while len(plain) < len(text):
        plain.append(int(row_after(plain, seed)[0]))
    assert text == plain


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25)
@given(
    ids=st.lists(st.lists(st.integers(0, 3), min_size=8, max_size=8), min_size=4, max_size=4),
    prob=st.sampled_from([0.0, 1e-30, 0.5, 1.0]),
)
def test_rows_that_repeat_a_token_or_have_no_probability_end_the_draft(
    mode: DraftMode, ids: list[list[int]], prob: float
) -> None:
    drafter = make_drafter(DraftConfig(mode=mode))
    drafter.feed([0, 1, 2, 3])
    width = drafter.row_width
    table = np.array(ids, np.int32)[:, :width]
    drafter.learn(Rows(np.arange(4, dtype=np.int32), table, np.full(table.shape, prob, np.float32)))
    tree = drafter.draft(30)
    tree.check(4)
    assert tree.n_drafted <= 30


@pytest.mark.parametrize("mode", MODES)
def test_following_first_children_is_the_most_probable_path(mode: DraftMode) -> None:
    drafter = make_drafter(DraftConfig(mode=mode))
    rng = random.Random(5)
    prompt = [rng.randrange(4) for _ in range(60)]
    drafter.feed(prompt)
    index = list(range(60))
    rows = rows_of([prompt[: i + 1] for i in index], index, drafter.row_width, 1)
    drafter.learn(rows)
    tree = drafter.draft(40)
    for node in range(len(tree)):
        children = tree.children(node)
        for source in {tree.sources[child] for child in children}:
            probs = [tree.probs[child] for child in children if tree.sources[child] == source]
            assert probs == sorted(probs, reverse=True)
