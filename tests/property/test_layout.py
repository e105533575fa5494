"""The layout against a model of the KV cache: cells with positions and sets of sequence ids."""

from __future__ import annotations

from fakes import random_tree
from hypothesis import given
from hypothesis import strategies as st

from racer_local.backend.layout import RemoveIds, lay_out, plan_commit
from racer_local.speculation.tree import DraftTree

N_PAST = 5


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    n = draw(st.integers(0, 40))
    return random_tree(0, n, 6, lambda below: draw(st.integers(0, below - 1)))


@given(trees(), st.integers(0, 5))
def test_every_node_sees_exactly_its_ancestors(tree: DraftTree, spare: int) -> None:
    layout = lay_out(tree, tree.n_leaves + spare)
    ids = [
        set(range(first, first + n))
        for first, n in zip(layout.first_ids, layout.n_ids, strict=True)
    ]
    assert ids[0] == set(range(layout.n_seq))
    for row, node in enumerate(layout.nodes):
        # llama.cpp lets a token see the cells that carry its first sequence id.
        seen = {
            other
            for place, other in enumerate(layout.nodes)
            if layout.first_ids[row] in ids[place] and layout.depths[place] <= layout.depths[row]
        }
        assert seen == set(tree.path(node))
        assert layout.row_of[node] == row
        assert layout.depths[row] == tree.depths[node]


@given(trees(), st.integers(0, 5), st.data())
def test_a_commit_leaves_the_accepted_path_in_every_sequence_and_nothing_else(
    tree: DraftTree, spare: int, data: st.DataObject
) -> None:
    layout = lay_out(tree, tree.n_leaves + spare)
    path = tree.path(data.draw(st.integers(0, len(tree) - 1)))
    cells = {
        node: (N_PAST + depth, set(range(first, first + n)))
        for node, depth, first, n in zip(
            layout.nodes, layout.depths, layout.first_ids, layout.n_ids, strict=True
        )
    }
    for edit in plan_commit(layout, path, N_PAST):
        end = edit.end if edit.end >= 0 else 10**9
        inside = [ids for position, ids in cells.values() if edit.start <= position < end]
        if isinstance(edit, RemoveIds):
            for ids in inside:
                ids.difference_update(range(layout.n_seq) if edit.seq < 0 else [edit.seq])
        else:
            for ids in inside:
                if edit.source in ids:
                    assert edit.target not in ids
                    ids.add(edit.target)
    everyone = set(range(layout.n_seq))
    assert {node for node, (_, ids) in cells.items() if ids} == set(path)
    assert all(cells[node][1] == everyone for node in path)
