"""How many tokens a step yields on recorded text: deterministic, so a floor is a fair test.

MAT counts the next token too: 1.0 is plain decoding. The floors are what an exact automaton with
plain Copy-Logit rows reaches; the reference implementation, replayed likewise, has 2.72 (64
nodes), 2.44 (16), 2.13 (8) and 1.84 (4).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from racer_local.bench.replay import Result, read_cost_curve, replay
from racer_local.bench.trace import Trace, read_trace
from racer_local.config import DraftConfig, DraftMode
from racer_local.drafting.make import make_drafter
from racer_local.drafting.racer.drafter import RacerDrafter
from racer_local.speculation.drafter import Drafter

DATA = Path(__file__).parents[2] / "data"


@cache
def trace() -> Trace:
    return read_trace(DATA / "smollm2_q4_1.npz")


@cache
def replayed(mode: DraftMode, budget: int) -> Result:
    def make() -> Drafter:
        return make_drafter(DraftConfig(mode=mode))

    return replay(trace(), make, budget, read_cost_curve(f"{DATA / 'costs.json'}:gpu_flat"))


def mat(mode: DraftMode, budget: int, category: str = "all") -> float:
    return replayed(mode, budget)[category]["mean_accepted_tokens"]


@pytest.mark.parametrize(
    ("mode", "budget", "floor"),
    [
        ("racer", 64, 3.25),
        ("racer", 16, 2.90),
        ("racer", 8, 2.60),
        ("racer", 4, 2.24),
        ("retrieval", 64, 2.55),
        ("logits", 64, 2.55),
    ],
)
def test_a_step_yields_at_least_so_many_tokens(mode: DraftMode, budget: int, floor: float) -> None:
    assert mat(mode, budget) >= floor


@pytest.mark.parametrize("budget", [4, 8, 16, 64])
def test_the_budget_holds_on_average_too(budget: int) -> None:
    assert replayed("racer", budget)["all"]["nodes_per_step"] <= budget + 1


def test_the_merged_tree_beats_both_of_its_parts_in_every_category() -> None:
    for category in replayed("racer", 64):
        best_part = max(mat("retrieval", 64, category), mat("logits", 64, category))
        assert mat("racer", 64, category) > best_part, category


def test_rows_by_token_beat_the_last_row_everywhere() -> None:
    for category in replayed("logits", 64):
        assert mat("logits", 64, category) > mat("last-logit", 64, category), category


def test_an_exact_automaton_beats_prompt_lookup() -> None:
    assert mat("retrieval", 64) > mat("pld", 64)


@pytest.mark.parametrize(("retrieval", "floor"), [(True, 3.20), (False, 2.30)])
def test_the_papers_one_token_rows_alone_reach_the_papers_gain(
    retrieval: bool, floor: float
) -> None:
    def make() -> Drafter:
        return RacerDrafter(DraftConfig(), retrieval=retrieval, two_token_keys=False)

    assert replay(trace(), make, 64)["all"]["mean_accepted_tokens"] >= floor


def test_plain_decoding_is_the_measure_of_all() -> None:
    summary = replayed("off", 64)["all"]
    assert (summary["mean_accepted_tokens"], summary["simulated_speedup"]) == (1.0, 1.0)


def test_on_a_flat_cost_curve_the_tree_pays() -> None:
    speedup = replayed("racer", 16)["all"]["simulated_speedup"]
    assert speedup is not None
    assert speedup > 2.3
