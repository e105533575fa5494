"""Tree invariants under any sequence of additions."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from racer_local.speculation.tree import ROOT, DraftTree, Source


def random_additions(seed: int, n: int) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    return [(rng.randrange(60), rng.randrange(5)) for _ in range(n)]


additions = st.one_of(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4)), max_size=20),
    st.builds(random_additions, st.integers(0, 2**32), st.integers(0, 60)),
)


def grown(steps: list[tuple[int, int]]) -> DraftTree:
    tree = DraftTree(0)
    for place, token in steps:
        tree.add(place % len(tree), token, Source.LOGITS)
    return tree


@given(additions)
def test_the_invariants_hold(steps: list[tuple[int, int]]) -> None:
    tree = grown(steps)
    tree.check(5)
    for node in range(len(tree)):
        tokens = [tree.tokens[child] for child in tree.children(node)]
        assert len(set(tokens)) == len(tokens)
        assert [tree.child(node, token) for token in tokens] == tree.children(node)
        assert tree.children(node) == sorted(tree.children(node))
        path = tree.path(node)
        assert (path[0], path[-1], len(path)) == (ROOT, node, tree.depths[node] + 1)


@given(additions)
def test_adding_a_path_again_changes_nothing(steps: list[tuple[int, int]]) -> None:
    tree = grown(steps)
    before = list(tree.tokens)
    for node in range(1, len(tree)):
        assert tree.add(tree.parents[node], tree.tokens[node], Source.RETRIEVAL) == node
    assert tree.tokens == before
