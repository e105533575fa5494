"""Acceptance: walk a draft tree with the target's own choices. Layer: pure.

This is the whole of losslessness. A token is emitted only because the target chose it; the tree
decides how many choices one decode step can serve, never which they are. So any tree, however
bad, leaves the output (greedy) or its distribution (sampling) as plain decoding has it.
"""

from __future__ import annotations

from collections.abc import Callable

from racer_local.speculation.tree import ROOT, DraftTree, NodeId, TokenId

__all__ = ["verify"]


def verify(
    tree: DraftTree,
    sample: Callable[[NodeId], TokenId],
    is_end: Callable[[TokenId], bool] | None = None,
) -> tuple[list[NodeId], TokenId]:
    """Find the longest path that the target agrees with, and the token it leaves the tree with.

    Args:
        tree: what was decoded.
        sample: chooses the target's token after a node. Called exactly once for every node of
            the returned path, from the root down, and for no other: a sampler with state
            (penalties, random numbers) sees just what plain decoding would show it.
        is_end: tells whether a token ends the generation; nothing below it is visited.

    Returns:
        The accepted nodes, root first, and the next token: the choice after the last of them.

    Source: sample-then-match acceptance as in llama.cpp's ``common_sampler_sample_and_accept_n``;
    it needs no draft probabilities and holds for any sampler.
    """
    path = [ROOT]
    while True:
        token = sample(path[-1])
        if is_end is not None and is_end(token):
            return path, token
        child = tree.child(path[-1], token)
        if child is None:
            return path, token
        path.append(child)
