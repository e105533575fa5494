from __future__ import annotations

import pytest
from fakes import chain

from racer_local.backend.layout import CopyIds, RemoveIds, lay_out, plan_commit
from racer_local.speculation.tree import DraftTree, Source


def forked() -> DraftTree:
    """Two branches: 1-2-3 is the principal path, 1-4 forks below node 1."""
    tree = DraftTree(0)
    one = tree.add(0, 1, Source.RETRIEVAL)
    two = tree.add(one, 2, Source.RETRIEVAL)
    tree.add(one, 4, Source.LOGITS)
    tree.add(two, 3, Source.RETRIEVAL)
    return tree


def test_a_root_alone_belongs_to_every_sequence() -> None:
    layout = lay_out(DraftTree(7), 5)
    assert (layout.nodes, layout.first_ids, layout.n_ids) == ([0], [0], [5])


def test_a_chain_takes_every_sequence_so_that_nothing_is_copied() -> None:
    layout = lay_out(chain(0, [1, 2, 3]), 4)
    assert layout.n_ids == [4, 4, 4, 4]
    assert plan_commit(layout, [0, 1, 2, 3], 10) == []
    assert plan_commit(layout, [0, 1], 10) == [RemoveIds(-1, 12, -1)]


def test_the_principal_path_comes_first_and_takes_the_spare_sequences() -> None:
    tree = forked()
    layout = lay_out(tree, 8)
    assert [tree.tokens[node] for node in layout.nodes] == [0, 1, 2, 3, 4]
    assert layout.depths == [0, 1, 2, 3, 2]
    assert layout.first_ids == [0, 0, 0, 0, 7]
    assert layout.n_ids == [8, 8, 7, 7, 1]


def test_a_branch_that_wins_is_copied_to_the_others_from_the_fork_on() -> None:
    tree = forked()
    layout = lay_out(tree, 3)
    side = tree.child(1, 4)
    assert side is not None
    assert plan_commit(layout, [0, 1, side], 10) == [
        RemoveIds(-1, 13, -1),
        RemoveIds(0, 12, 13),
        CopyIds(2, 0, 12, 13),
        RemoveIds(1, 12, 13),
        CopyIds(2, 1, 12, 13),
    ]


def test_a_tree_needs_as_many_sequences_as_leaves() -> None:
    assert lay_out(forked(), 2).n_ids == [2, 2, 1, 1, 1]
    with pytest.raises(ValueError, match="2 leaves"):
        lay_out(forked(), 1)
