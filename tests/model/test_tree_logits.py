"""Each node of a tree must get the logits that its path alone would get."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import chain, random_tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inputs import LINES60, STEP
from numpy.typing import NDArray

from racer_local.backend.target import LlamaTarget
from racer_local.decoding.session import Session
from racer_local.speculation.prefix import common_prefix
from racer_local.speculation.tree import ROOT, DraftTree, NodeId

# Rows of one batch up to here are bit-identical to single ones, whatever the kernel's groups.
MAX_IDENTICAL = 16
# Below this many cells llama.cpp's flash attention takes one path for any number of rows.
MAX_ORDERED_CELLS = 512


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def principal_path(tree: DraftTree) -> list[NodeId]:
    path = [ROOT]
    while children := tree.children(path[-1]):
        path.append(children[0])
    return path


def rows_of_path(target: LlamaTarget, tree: DraftTree, path: list[NodeId]) -> NDArray[np.float32]:
    """Decode a path alone, as a chain, and take it back.

    The chain goes on to as many rows as the tree has: matrix kernels depend on the number of
    rows, and with K-quants that difference is larger than what is looked for here.
    """
    tokens = [tree.tokens[node] for node in path]
    filler = [tokens[0]] * (len(tree) - len(tokens))
    target.decode_tree(chain(tokens[0], [*tokens[1:], *filler]))
    rows = target.logits()[: len(path)].copy()
    target.rewind(len(target.tokens))
    return rows


def check(target: LlamaTarget, prompt: list[int], tree: DraftTree, pick: int) -> None:
    target.rewind(common_prefix(target.tokens, prompt))
    if len(target.tokens) < len(prompt):
        news = prompt[len(target.tokens) :]
        for start in range(0, len(news), target.n_batch):
            target.prefill(news[start : start + target.n_batch], [])
    n_past = len(prompt)
    row_of = target.decode_tree(tree).row_of
    logits = target.logits().copy()
    leaves = [node for node in range(len(tree)) if not tree.children(node)]
    leaf = leaves[pick % len(leaves)]
    path, principal = tree.path(leaf), principal_path(tree)
    target.commit(path)
    assert target.tokens == prompt + [tree.tokens[node] for node in path]
    assert set(target.positions()) == {(0, n_past + len(path) - 1)}
    target.rewind(n_past)
    assert set(target.positions()) == {(0, n_past - 1)}
    for checked in (path, principal):
        alone = rows_of_path(target, tree, checked)
        in_order = checked == principal and len(tree) <= MAX_IDENTICAL
        is_exact = in_order and n_past + len(tree) < MAX_ORDERED_CELLS
        for node, expected in zip(checked, alone, strict=True):
            found = logits[row_of[node]]
            if is_exact:
                assert (found == expected).all()
            else:
                assert cosine(found, expected) > 0.999


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    n = draw(st.integers(0, 24))
    root = draw(st.integers(5, 40_000))
    return random_tree(
        root, n, 40_000, lambda below: draw(st.integers(5 if below > 25 else 0, below - 1))
    )


SETTINGS = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SETTINGS
@given(tree=trees(), pick=st.integers(0, 100), n_prompt=st.sampled_from([1, 7, 30, 480, 700]))
def test_nodes_see_their_own_path_with_full_attention(
    smol_model: Session, tree: DraftTree, pick: int, n_prompt: int
) -> None:
    prompt = smol_model.prompt_tokens(LINES60)[:n_prompt]
    check(smol_model.target, prompt, tree, pick)


@SETTINGS
@given(tree=trees(), pick=st.integers(0, 100), n_prompt=st.sampled_from([2, 30, 500, 520, 800]))
def test_nodes_see_their_own_path_with_a_sliding_window(
    gemma_model: Session, tree: DraftTree, pick: int, n_prompt: int
) -> None:
    prompt = gemma_model.prompt_tokens(LINES60)[:n_prompt]
    check(gemma_model.target, prompt, tree, pick)


def test_a_saved_text_comes_back_whole_or_not_at_all(gemma: Session) -> None:
    target, conversations = gemma.target, gemma.engine._conversations
    text = gemma.prompt_tokens(LINES60)[:800]
    other = gemma.prompt_tokens("Something else. " * 20)[1:]
    for prompt in (text, other):
        conversations.enter([*prompt, 0])
        for start in range(len(target.tokens), len(prompt), target.n_batch):
            target.prefill(prompt[start : start + target.n_batch], [])
    assert target.tokens == other
    # The window is 512 tokens: of the saved text the cells of the first ones are gone.
    conversations.enter([*text[:300], 0])
    n_kept = len(target.tokens)
    assert n_kept in (0, 300)
    assert set(target.positions()) == {(0, 299) if n_kept else (-1, -1)}


@pytest.mark.parametrize("n_steps", [40])
def test_many_commits_of_side_branches_keep_all_sequences_together(
    smol: Session, n_steps: int
) -> None:
    target = smol.target
    rng = np.random.default_rng(1)
    prompt = smol.prompt_tokens(STEP)
    target.prefill(prompt, [])
    for _ in range(n_steps):
        tree = random_tree(7, 20, 30_000, lambda below: int(rng.integers(0, below)))
        target.decode_tree(tree)
        before = list(target.tokens)
        path = tree.path(int(rng.integers(0, len(tree))))
        target.commit(path)
        assert target.tokens == before + [tree.tokens[node] for node in path]
        assert set(target.positions()) == {(0, len(target.tokens) - 1)}
