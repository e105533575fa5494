"""What perfect foresight over the candidates of ``auto`` would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from racer_local.bench.replay import prime, replay_step
from racer_local.bench.trace import Trace
from racer_local.config import DraftConfig
from racer_local.drafting.auto.drafter import AutoDrafter
from racer_local.drafting.auto.estimate import Estimator
from racer_local.speculation.tree import ROOT, DraftTree, Source, TokenId

__all__ = ["oracle"]


def oracle(
    trace: Trace, cost: Callable[[int], float], budget: int = 64, *, best_only: bool = False
) -> dict[str, float]:
    """Find the speedup of perfect foresight over the candidates of ``auto``.

    Of the coming tokens it drafts the chain that gives most tokens per time, as far as they are
    candidates. No estimate and no plan can do better with the same candidates.

    Args:
        trace: the recorded text.
        cost: relative time of a decode step of n tokens, the root counted.
        budget: most draft nodes per step.
        best_only: follow only the candidate that was estimated highest at each place.

    Returns:
        The simulated speedup per category, and one named ``all``.
    """
    estimator = Estimator()
    tallies: dict[str, tuple[int, float]] = {}
    for record in trace:
        drafter = AutoDrafter(DraftConfig(mode="auto", budget=budget), None, None, estimator)
        tokens: list[TokenId] = record.tokens.tolist()
        prime(record, tokens, drafter)
        position = record.n_prompt
        while position < len(tokens) - 1:
            most = min(budget, len(tokens) - 2 - position)
            coming = tokens[position + 1 : position + 1 + most]
            n_chain = _reach(drafter, coming, best_only=best_only)
            n_best = max(range(n_chain + 1), key=lambda n: (1 + n) / cost(1 + n))
            tree, node = DraftTree(tokens[position]), ROOT
            for token in coming[:n_best]:
                node = tree.add(node, token, Source.RETRIEVAL)
            n_emitted = len(replay_step(record, tokens, drafter, tree, position))
            position += n_emitted
            for name in (record.category, "all"):
                n_tokens, seconds = tallies.get(name, (0, 0.0))
                tallies[name] = n_tokens + n_emitted, seconds + cost(len(tree))
    return {name: n_tokens / seconds for name, (n_tokens, seconds) in sorted(tallies.items())}


def _reach(drafter: AutoDrafter, coming: Sequence[TokenId], *, best_only: bool) -> int:
    """Count how many of the coming tokens could be drafted in one chain.

    Args:
        drafter: at the position before them.
        coming: what the target will say.
        best_only: count only first guesses; otherwise any candidate.
    """
    place = drafter._root_place()
    for n, token in enumerate(coming):
        tokens, probs = place.candidates.tokens, place.probs
        if token not in tokens:
            return n
        if best_only and probs[tokens.index(token)] < max(probs):
            return n
        place = drafter._below(place, token)
    return len(coming)
