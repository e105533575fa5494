"""From a draft tree to the rows of one batch, and back to what the KV cache must keep.

Every sequence id holds the whole accepted text, so nothing of it is ever copied. A decode step
gives each leaf of the tree an interval of sequence ids; a node carries the ids of all leaves
below it, and the root carries them all. Leaves are numbered in depth-first order, so that the
ids of a node are one interval. Layer: pure; it knows positions and ids, not llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from racer_local.speculation.tree import ROOT, DraftTree, NodeId

__all__ = ["CopyIds", "KvEdit", "RemoveIds", "SeqId", "TreeLayout", "lay_out", "plan_commit"]

SeqId: TypeAlias = int


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """The rows of one batch, in the order in which llama.cpp sees them.

    Rows are in depth-first order and the principal path comes first: if it wins, its cells lie
    in position order without a gap, and nothing has to be copied.

    Attributes:
        nodes: node per row; row 0 is the root.
        row_of: row per node.
        depths: distance from the root per row.
        first_ids: first sequence id per row.
        n_ids: number of consecutive sequence ids per row; ``n_seq`` for the root.
        n_seq: sequence ids in use altogether.
    """

    nodes: list[NodeId]
    row_of: list[int]
    depths: list[int]
    first_ids: list[SeqId]
    n_ids: list[int]
    n_seq: int


@dataclass(frozen=True, slots=True)
class RemoveIds:
    """Take sequence ``seq`` (-1: every sequence) off the cells at positions [start, end)."""

    seq: SeqId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CopyIds:
    """Add sequence ``target`` to the cells of ``source`` at positions [start, end)."""

    source: SeqId
    target: SeqId
    start: int
    end: int


KvEdit: TypeAlias = RemoveIds | CopyIds


def lay_out(tree: DraftTree, n_seq: int) -> TreeLayout:
    """Order the nodes of ``tree`` and assign sequence ids 0 to ``n_seq`` - 1.

    The principal leaf takes the ids that no other leaf needs: if it wins, every spare sequence
    already has its cells.

    Raises:
        ValueError: the tree has more leaves than there are sequences.
    """
    if len(tree) == 1:
        return TreeLayout([ROOT], [0], [0], [0], [n_seq], n_seq)
    nodes: list[NodeId] = []
    row_of = [0] * len(tree)
    stack = [ROOT]
    n_leaves = 0
    while stack:
        node = stack.pop()
        row_of[node] = len(nodes)
        nodes.append(node)
        children = tree.children(node)
        if children:
            children.reverse()
            stack.extend(children)
        else:
            n_leaves += 1
    if n_leaves > n_seq:
        raise ValueError(f"a tree of {n_leaves} leaves needs more than {n_seq} sequences")
    spare = n_seq - n_leaves
    first_ids = [0] * len(nodes)
    n_ids = [0] * len(nodes)
    # Backwards, every child is seen before its parent; leaves take their ids from the end.
    next_free = n_seq
    for row in range(len(nodes) - 1, -1, -1):
        if n_ids[row] == 0:
            width = 1 if next_free - 1 > spare else next_free
            next_free -= width
            n_ids[row] = width
            first_ids[row] = next_free
        parent = tree.parents[nodes[row]]
        if parent >= 0:
            parent_row = row_of[parent]
            n_ids[parent_row] += n_ids[row]
            first_ids[parent_row] = first_ids[row]
    depths = [tree.depths[node] for node in nodes]
    return TreeLayout(nodes, row_of, depths, first_ids, n_ids, n_seq)


def plan_commit(layout: TreeLayout, path: Sequence[NodeId], n_past: int) -> list[KvEdit]:
    """Say how to keep the accepted path, in every sequence, and nothing else of the tree.

    Args:
        layout: the layout that was decoded.
        path: accepted nodes from the root down, the root included.
        n_past: tokens in the cache before the tree; the root is at this position.

    Returns:
        Edits to apply in order. One of them where the whole principal path or the root alone
        was accepted.
    """
    rows = [layout.row_of[node] for node in path]
    end = n_past + len(rows)
    deepest = max(layout.depths)
    edits: list[KvEdit] = []
    if deepest + 1 > len(rows):
        edits.append(RemoveIds(-1, end, -1))
    # Ids leave the path where the interval narrows: those outside go back to the fork.
    winner = layout.first_ids[rows[-1]]
    for depth in range(len(rows) - 1):
        outer, inner = rows[depth], rows[depth + 1]
        start = n_past + depth + 1
        inner_first = layout.first_ids[inner]
        inner_end = inner_first + layout.n_ids[inner]
        outer_first = layout.first_ids[outer]
        for seq in range(outer_first, outer_first + layout.n_ids[outer]):
            if not inner_first <= seq < inner_end:
                edits.append(RemoveIds(seq, start, end))
                edits.append(CopyIds(winner, seq, start, end))
    return edits
