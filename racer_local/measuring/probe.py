"""Measures what decode steps of different sizes cost, in about a second and a half. Layer: pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter

from racer_local.speculation.target import Target
from racer_local.speculation.tree import DraftTree, Source, TokenId

__all__ = ["Probe", "probe_steps"]

# The most telling sizes first: on a slow model time runs out early. Kernels work on groups of
# rows, so small sizes matter one by one.
_SIZES = (2, 4, 8, 3, 16, 6, 5, 7, 32, 12, 64, 128)
_REPEATS = 2
# Plain steps that take so much longer than others were slowed down by what came before them: two
# in a row, for one alone is noise.
_SWITCHING = 0.5
# Context in which the cost of attention is measured, and the sizes it is measured with.
_CONTEXT = 256
_CONTEXT_SIZES = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class Probe:
    """What was measured.

    Attributes:
        points: (rows, seconds) in an empty context, rows rising from 1; at least two.
        context_cost: seconds more per row and token of context; 0.0 where reading so much
            context would have taken too long.
    """

    points: list[tuple[int, float]]
    context_cost: float


def probe_steps(target: Target, n_max: int, budget_s: float = 1.0) -> Probe:
    """Time chains of several lengths from an empty text, which is empty again afterwards.

    Args:
        target: anything in its cache is dropped.
        n_max: largest number of rows to try.
        budget_s: no new size is begun after so many seconds, and a context is read only if that
            takes no longer.
    """
    target.rewind(0)
    _time_chain(target, 1)  # the first decode pays for what is loaded late
    started = perf_counter()
    # Whatever else runs on the machine only ever makes a step longer.
    plain = min(_time_chain(target, 1) for _ in range(_REPEATS + 2))
    points: dict[int, float] = {1: plain}
    for n in _SIZES:
        if len(points) >= 2 and perf_counter() - started > budget_s:
            break
        if n <= max(n_max, 2):
            points[n] = min(_time_and_back(target, n, plain) for _ in range(_REPEATS))
    return Probe(sorted(points.items()), _context_cost(target, points, budget_s))


def _time_and_back(target: Target, n_rows: int, plain: float) -> float:
    """Time a step of several rows between plain ones, and what the next plain one is delayed by.

    GPUs replay a recorded step as long as the next one is like it: after a change of size two
    steps take several times as long, and then a draft has to bring that in as well.
    """
    seconds = _time_chain(target, n_rows)
    delays = [_time_chain(target, 1) - plain for _ in range(2)]
    return seconds + (sum(delays) if min(delays) > _SWITCHING * plain else 0.0)


def _context_cost(target: Target, points: dict[int, float], budget_s: float) -> float:
    largest = max(points)
    n_context = min(_CONTEXT, target.n_ctx // 2)
    # Text is read at least twice as fast as trees are.
    seconds = n_context * points[largest] / largest / 2
    if n_context < _CONTEXT // 2 or seconds > budget_s:
        return 0.0
    tokens = _tokens(target, n_context)
    for start in range(0, n_context, target.n_batch):
        target.prefill(tokens[start : start + target.n_batch], [])
    rates = [
        (min(_time_chain(target, n) for _ in range(_REPEATS)) - points[n]) / (n * n_context)
        for n in _CONTEXT_SIZES
        if n in points
    ]
    target.rewind(0)
    return max(0.0, median(rates))


def _tokens(target: Target, n: int) -> list[TokenId]:
    return [(7919 * i + 11) % target.n_vocab for i in range(n)]


def _time_chain(target: Target, n_rows: int) -> float:
    """Time a step of one chain after the text in the cache, which stays as it was."""
    tokens = _tokens(target, n_rows)
    tree = DraftTree(tokens[0])
    node = 0
    for token in tokens[1:]:
        node = tree.add(node, token, Source.LOGITS)
    n_past = len(target.tokens)
    started = perf_counter()
    target.decode_tree(tree)
    seconds = perf_counter() - started
    target.rewind(n_past)
    return seconds
