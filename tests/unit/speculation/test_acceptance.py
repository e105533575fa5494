"""Acceptance."""

from __future__ import annotations

from racer_local.speculation.acceptance import verify
from racer_local.speculation.tree import ROOT, DraftTree, Source


def tree_of(*paths: tuple[int, ...]) -> DraftTree:
    tree = DraftTree(0)
    for path in paths:
        node = ROOT
        for token in path:
            node = tree.add(node, token, Source.RETRIEVAL)
    return tree


def test_a_bare_root_is_plain_decoding() -> None:
    assert verify(DraftTree(5), lambda node: 42) == ([ROOT], 42)


def test_the_path_the_target_takes_is_accepted_and_its_next_token_leaves_the_tree() -> None:
    tree = tree_of((1, 2, 3), (1, 5, 6))
    says = {0: 1, 1: 5, 4: 6, 5: 9}
    path, token = verify(tree, says.__getitem__)
    assert ([tree.tokens[node] for node in path], token) == ([0, 1, 5, 6], 9)


def test_every_accepted_node_is_sampled_once_and_no_other() -> None:
    tree = tree_of((1, 2), (3, 4), (1, 7))
    visited = []

    def sample(node: int) -> int:
        visited.append(node)
        return {0: 1, 1: 7}.get(node, 99)

    path, _ = verify(tree, sample)
    assert visited == path


def test_nothing_below_an_end_token_is_visited() -> None:
    tree = tree_of((1, 2, 3))
    path, token = verify(tree, lambda node: node + 1, lambda token: token == 2)
    assert (path, token) == ([0, 1], 2)
