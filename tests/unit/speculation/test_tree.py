"""The draft tree by hand-made examples."""

from __future__ import annotations

import pytest

from racer_local.speculation.tree import ROOT, DraftTree, Source


def small_tree() -> DraftTree:
    tree = DraftTree(0)
    first = tree.add(ROOT, 1, Source.RETRIEVAL, 0.5)
    tree.add(first, 2, Source.RETRIEVAL, 0.25)
    tree.add(ROOT, 3, Source.LOGITS, 0.125)
    return tree


def test_a_new_tree_is_its_root() -> None:
    tree = DraftTree(7)
    assert (len(tree), tree.n_drafted, tree.tokens, tree.parents) == (1, 0, [7], [-1])
    assert (tree.sources, tree.probs, tree.depths) == ([Source.TARGET], [1.0], [0])
    tree.check(8)


def test_children_keep_the_order_in_which_they_were_added() -> None:
    tree = small_tree()
    assert tree.children(ROOT) == [1, 3]
    assert tree.depths == [0, 1, 2, 1]
    assert tree.path(2) == [0, 1, 2]


def test_a_duplicate_is_merged_and_the_first_proposer_keeps_the_credit() -> None:
    tree = small_tree()
    assert tree.add(ROOT, 1, Source.LOGITS, 0.9) == 1
    assert (len(tree), tree.sources[1], tree.probs[1]) == (4, Source.RETRIEVAL, 0.5)


def test_a_child_is_found_by_its_token() -> None:
    tree = small_tree()
    assert tree.child(ROOT, 3) == 3
    assert tree.child(ROOT, 2) is None


def test_the_check_accepts_a_sound_tree_and_names_a_token_out_of_range() -> None:
    tree = small_tree()
    tree.check(4)
    with pytest.raises(ValueError, match="outside the vocabulary of 3"):
        tree.check(3)


def test_the_check_finds_a_parent_that_comes_later() -> None:
    tree = small_tree()
    tree.parents[1] = 2
    with pytest.raises(ValueError, match="a parent comes first"):
        tree.check()


def test_the_check_finds_a_twin_a_second_root_and_a_missing_entry() -> None:
    tree = small_tree()
    tree.tokens[3] = 1
    with pytest.raises(ValueError, match="twin"):
        tree.check()
    tree = small_tree()
    tree.parents[0] = 0
    with pytest.raises(ValueError, match="must be its root"):
        tree.check()
    tree = small_tree()
    tree.probs.pop()
    with pytest.raises(ValueError, match="different lengths"):
        tree.check()


def test_nodes_are_left_out_with_all_below_them() -> None:
    tree = small_tree()
    assert tree.without(()) is tree
    rest = tree.without({1})
    assert (rest.tokens, rest.sources, rest.probs) == (
        [0, 3],
        [Source.TARGET, Source.LOGITS],
        [1.0, 0.125],
    )
    rest.check()
    assert tree.without({2}).tokens == [0, 1, 3]
    assert len(tree) == 4
