"""How much to draft: grow the likeliest tree, cut it where it pays best. Layer: pure.

A step that decodes n tokens takes t(n) and emits, on average, one token plus the sum of the path
probabilities of its draft nodes. The tree is grown best-first, so its first n nodes are the best
tree of n nodes, and it is cut at the n with the most expected tokens per time. On a steep curve
that is often n = 1, plain decoding; on a flat one it is a wide tree; where the curve has steps,
the tree fills them.

Growing ends when no number of further nodes can win: the next candidate is at most as probable
as the best one waiting, and time grows at least with the smallest average slope ahead, so a
candidate below (best rate so far) x (that slope) cannot pay, nor can any after it.

Tried and worse in replay: paying with the average rate of the text instead of the step's own
(1.33 to 1.31 on a steep curve), and a blend of the two (1.33 to 1.32 or less).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

from racer_local.speculation.tree import ROOT, DraftTree, NodeId, Source, TokenId

__all__ = ["StepTimes", "plan"]

# (probability given the path, token, who proposes it) for every candidate below a node.
Expand: TypeAlias = Callable[[DraftTree, NodeId], Sequence[tuple[float, TokenId, Source]]]

# Paths below this probability never pay: even the flattest curve has a slope.
_MIN_PATH_PROB = 0.004


class StepTimes:
    """Time of a step of n tokens for n up to a limit, and the least slope beyond each n.

    Attributes:
        times: time for n tokens at index n; index 0 is not used.
        slopes: at index n the smallest of (t(m) - t(n)) / (m - n) over m > n; infinite at the
            limit.
    """

    __slots__ = ("slopes", "times")

    def __init__(self, times: Sequence[float]) -> None:
        """Take times for 0 (ignored), 1, 2, ... tokens; O(n).

        Raises:
            ValueError: if there is no time for one token.
        """
        if len(times) < 2:
            raise ValueError("step times need at least the time of one token")
        self.times = list(times)
        self.slopes = [float("inf")] * len(times)
        # Lower convex hull of the points ahead, the nearest last.
        hull: list[int] = [len(times) - 1]
        for n in range(len(times) - 2, 0, -1):
            while len(hull) > 1 and self._slope(n, hull[-1]) >= self._slope(n, hull[-2]):
                hull.pop()
            self.slopes[n] = self._slope(n, hull[-1])
            hull.append(n)

    def _slope(self, n: int, m: int) -> float:
        return (self.times[m] - self.times[n]) / (m - n)


def plan(
    root: TokenId, budget: int, step: StepTimes, expand: Expand, margin: float = 0.0
) -> DraftTree:
    """Grow and cut a tree.

    Args:
        root: its root.
        budget: most draft nodes; ``step`` may limit them further.
        step: what a step takes.
        expand: gives the candidates below a node of the tree grown so far; probabilities of one
            node add up to at most 1.
        margin: share by which drafting must beat plain decoding.
    """
    tree = DraftTree(root)
    times, slopes = step.times, step.slopes
    budget = min(budget, len(times) - 2)
    if budget <= 0:
        return tree
    # Entries: (-path probability, order of arrival, parent, token, source).
    heap: list[tuple[float, int, NodeId, TokenId, Source]] = []
    n_seen = 0
    node, path_prob = ROOT, 1.0
    n, n_best, tokens, best = 1, 1, 1.0, (1.0 + margin) / times[1]
    while True:
        least = max(best * slopes[n], _MIN_PATH_PROB)
        for prob, token, source in expand(tree, node) if path_prob >= least else ():
            if path_prob * prob >= _MIN_PATH_PROB:
                heappush(heap, (-path_prob * prob, n_seen, node, token, source))
                n_seen += 1
        if not heap or n > budget or -heap[0][0] < least:
            break
        negative, _, parent, token, source = heappop(heap)
        path_prob = -negative
        node = tree.add(parent, token, source, path_prob)
        n += 1
        tokens += path_prob
        if tokens / times[n] > best:
            best, n_best = tokens / times[n], n
    return tree.limit_nodes(n_best - 1)
