"""The planner: which nodes, how many, in which order."""

from __future__ import annotations

import pytest

from racer_local.drafting.auto.planner import StepTimes, plan
from racer_local.speculation.tree import ROOT, DraftTree, NodeId, Source, TokenId

FLAT = StepTimes([1.0 + 0.01 * max(0, n - 1) for n in range(66)])
STEEP = StepTimes([0.2 + 0.8 * max(1, n) for n in range(66)])


def chain(*probs: float) -> object:
    def expand(tree: DraftTree, node: NodeId) -> list[tuple[float, TokenId, Source]]:
        depth = tree.depths[node]
        return [(probs[depth], depth + 10, Source.RETRIEVAL)] if depth < len(probs) else []

    return expand


def bushy(tree: DraftTree, node: NodeId) -> list[tuple[float, TokenId, Source]]:
    return [(0.3, 1, Source.LOGITS), (0.5, 2, Source.RETRIEVAL), (0.2, 3, Source.LOGITS)]


def test_a_guess_that_does_not_pay_is_not_made() -> None:
    assert plan(5, 64, STEEP, chain(0.7)).n_drafted == 0
    assert plan(5, 64, STEEP, chain(0.9)).n_drafted == 1
    assert plan(5, 64, FLAT, chain(0.05)).n_drafted == 1


def test_a_chain_is_cut_where_tokens_per_time_are_largest() -> None:
    probs = [0.99] * 6 + [0.2] * 10
    assert plan(5, 64, STEEP, chain(*probs)).n_drafted == 6


def test_a_step_of_the_curve_is_filled() -> None:
    stairs = StepTimes([0.0, 1.0, *(1.8 + (n - 2) // 4 for n in range(2, 30))])
    # One guess of 0.5 costs 0.8 and does not pay; four of them cost no more.
    tree = plan(5, 64, stairs, chain(0.9, 0.9, 0.9, 0.9, 0.1))
    assert tree.n_drafted == 4
    assert plan(5, 1, stairs, chain(0.5)).n_drafted == 0


def test_flat_curves_give_wide_trees_and_the_likeliest_child_comes_first() -> None:
    tree = plan(5, 40, FLAT, bushy)
    tree.check()
    assert tree.n_drafted > 20
    assert tree.n_leaves > 10
    assert tree.probs[1:] == sorted(tree.probs[1:], reverse=True)
    for node in range(len(tree)):
        probs = [tree.probs[child] for child in tree.children(node)]
        assert probs == sorted(probs, reverse=True)
    assert tree.tokens[1] == 2
    assert tree.sources[1] == Source.RETRIEVAL


def test_the_budget_and_the_known_times_are_upper_bounds() -> None:
    for budget in (0, -1, 1, 5):
        assert plan(5, budget, FLAT, bushy).n_drafted == max(0, budget)
    short = StepTimes([1.0, 1.0, 1.01, 1.02])
    assert plan(5, 64, short, bushy).n_drafted == 2
    assert plan(5, 64, StepTimes([1.0, 1.0]), bushy).n_drafted == 0


def test_a_margin_asks_for_more() -> None:
    assert plan(5, 64, STEEP, chain(0.9), margin=0.0).n_drafted == 1
    assert plan(5, 64, STEEP, chain(0.9), margin=0.2).n_drafted == 0


def test_nothing_below_what_cannot_pay_is_looked_at() -> None:
    asked: list[NodeId] = []

    def expand(tree: DraftTree, node: NodeId) -> list[tuple[float, TokenId, Source]]:
        asked.append(node)
        return [(0.4, 1, Source.LOGITS), (0.3, 2, Source.LOGITS)]

    assert plan(5, 64, STEEP, expand).n_drafted == 0
    assert asked == [ROOT]


def test_slopes_look_ahead_to_the_cheapest_stretch() -> None:
    step = StepTimes([0.0, 1.0, 5.0, 5.5, 5.5, 9.0])
    assert step.slopes[1:5] == pytest.approx([1.5, 0.25, 0.0, 3.5])
    assert step.slopes[5] == float("inf")
    with pytest.raises(ValueError, match="need at least"):
        StepTimes([1.0])
