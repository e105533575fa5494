"""Measures what decode steps of different sizes cost, in about a second. Layer: pure."""

from __future__ import annotations

from time import perf_counter

from racer_local.backend.base import Target
from racer_local.tree import DraftTree, Source

__all__ = ["probe_steps"]

# The most telling sizes first: on a slow model time runs out early. Kernels work on groups of
# rows, so small sizes matter one by one.
_SIZES = (1, 2, 4, 8, 3, 16, 6, 5, 7, 32, 12, 64, 128)
_REPEATS = 2


def probe_steps(target: Target, n_max: int, budget_s: float = 1.0) -> list[tuple[int, float]]:
    """Time chains of several lengths from an empty text, which is empty again afterwards.

    Args:
        target: anything in its cache is dropped.
        n_max: largest number of rows to try.
        budget_s: no new size is begun after so many seconds.

    Returns:
        (rows, seconds), rows rising from 1; at least two points.
    """
    target.rewind(0)
    _time_chain(target, 1)  # the first decode pays for what is loaded late
    started = perf_counter()
    points: dict[int, float] = {}
    for n in _SIZES:
        if len(points) >= 2 and perf_counter() - started > budget_s:
            break
        if n <= max(n_max, 2):
            # Whatever else runs on the machine only ever makes a step longer.
            points[n] = min(_time_chain(target, n) for _ in range(_REPEATS))
    return sorted(points.items())


def _time_chain(target: Target, n_rows: int) -> float:
    tokens = [(7919 * i + 11) % target.n_vocab for i in range(n_rows)]
    tree = DraftTree(tokens[0])
    node = 0
    for token in tokens[1:]:
        node = tree.add(node, token, Source.LOGITS)
    started = perf_counter()
    target.decode_tree(tree)
    seconds = perf_counter() - started
    target.rewind(0)
    return seconds
