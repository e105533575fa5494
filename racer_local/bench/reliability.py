"""How true the estimates of draft nodes are. Layer: pure.

A draft node whose parent was accepted had an estimate, given its parent, and was taken or not. In
each of ten bins of the estimate, the mean estimate should be the share that was taken.
"""

from __future__ import annotations

from typing import TypedDict

from racer_local.speculation.tree import DraftTree, NodeId, TokenId

__all__ = ["Reliability", "ReliabilityBin"]

_N_BINS = 10


class ReliabilityBin(TypedDict):
    """One bin.

    Attributes:
        low: lower end of the estimates in it.
        high: upper end.
        count: draft nodes.
        estimated: their mean estimate.
        taken: the share that the target took.
    """

    low: float
    high: float
    count: int
    estimated: float
    taken: float


class Reliability:
    """Counts of estimates against outcomes."""

    __slots__ = ("_count", "_sum", "_taken")

    def __init__(self) -> None:
        """Start at zero."""
        self._count = [0] * _N_BINS
        self._sum = [0.0] * _N_BINS
        self._taken = [0] * _N_BINS

    def count(self, tree: DraftTree, node: NodeId, token: TokenId) -> None:
        """Take note of the children of an accepted node, after which ``token`` came."""
        for child in tree.children(node):
            prob = tree.probs[child] / tree.probs[node] if tree.probs[node] > 0 else 0.0
            place = min(_N_BINS - 1, int(prob * _N_BINS))
            self._count[place] += 1
            self._sum[place] += prob
            self._taken[place] += tree.tokens[child] == token

    def table(self) -> list[ReliabilityBin]:
        """List the bins that have something in them."""
        return [
            ReliabilityBin(
                low=i / _N_BINS,
                high=(i + 1) / _N_BINS,
                count=n,
                estimated=self._sum[i] / n,
                taken=self._taken[i] / n,
            )
            for i, n in enumerate(self._count)
            if n
        ]
