"""Replay: what a drafter is told, and how it is counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from racer_local.bench.replay import CostCurve, read_cost_curve, replay
from racer_local.bench.trace import Trace
from racer_local.config import DraftConfig
from racer_local.drafting.make import make_drafter
from racer_local.drafting.off import OffDrafter
from racer_local.errors import ConfigError, TraceError
from racer_local.speculation.drafter import Drafter, Rows, StepOutcome
from racer_local.speculation.tree import ROOT, DraftTree, Source

COSTS = Path(__file__).parents[2] / "data" / "costs.json"


def trace_of(*records: tuple[str, list[int], list[int]]) -> Trace:
    """Make a trace from (category, prompt, answer); row i says token i + 100."""
    tokens = [token for _, prompt, answer in records for token in (*prompt, *answer)]
    lengths = [len(prompt) + len(answer) for _, prompt, answer in records]
    return Trace(
        tokens=np.array(tokens, np.int32),
        topk_ids=(np.arange(len(tokens), dtype=np.int32) + 100)[:, None].repeat(8, axis=1),
        topk_probs=np.full((len(tokens), 8), 0.1, np.float16),
        offsets=np.cumsum([0, *lengths]).astype(np.int64),
        n_prompt=np.array([len(prompt) for _, prompt, _ in records], np.int32),
        category=np.array([category for category, _, _ in records]),
    )


class Oracle(OffDrafter):
    """Drafts the next tokens of a text it knows, and writes down what it is told."""

    row_width = 8

    def __init__(self, text: list[int], n_right: int) -> None:
        super().__init__()
        self.text, self.n_right = text, n_right
        self.seen: list[int] = []
        self.places: list[list[int]] = []
        self.budgets: list[int] = []

    def feed(self, tokens: Sequence[int]) -> None:
        self.seen.extend(tokens)

    def wanted_rows(self, tokens: Sequence[int]) -> np.ndarray:
        return np.arange(len(tokens), dtype=np.int32)

    def learn(self, rows: Rows) -> None:
        self.places.append((rows.ids[:, 0] - 100).tolist())

    def draft(self, budget: int) -> DraftTree:
        self.budgets.append(budget)
        tree = DraftTree(self.seen[-1])
        node = ROOT
        for token in self.text[len(self.seen) :][: min(self.n_right, budget)]:
            node = tree.add(node, token, Source.RETRIEVAL)
        if tree.n_drafted < budget:
            tree.add(node, 999, Source.LOGITS)
        return tree

    def accept(self, outcome: StepOutcome) -> None:
        self.seen += [outcome.tree.tokens[node] for node in outcome.path[1:]]
        self.seen.append(outcome.next_token)
        assert outcome.rows is not None
        assert outcome.rows.index.tolist() == list(outcome.path)
        self.places.append((outcome.rows.ids[:, 0] - 100).tolist())


def test_only_rows_of_the_prompt_the_root_and_accepted_nodes_are_taught() -> None:
    text = list(range(9))
    oracle = Oracle(text, n_right=1)
    result = replay(trace_of(("qa", text[:3], text[3:])), lambda: oracle, budget=8)
    assert oracle.places == [[0, 1, 2], [3, 4], [5, 6], [7]]
    assert oracle.seen == text
    assert oracle.budgets == [4, 2, 0]
    assert (result["qa"]["tokens"], result["qa"]["steps"]) == (5, 3)
    assert result["qa"]["mean_accepted_tokens"] == pytest.approx(5 / 3)
    assert result["qa"]["nodes_per_step"] == pytest.approx((3 + 3 + 1) / 3)
    assert result["qa"]["simulated_speedup"] is None


def test_no_more_tokens_are_emitted_than_were_recorded() -> None:
    text = list(range(20))
    for n_right in range(12):
        result = replay(trace_of(("qa", text[:3], text[3:])), lambda n=n_right: Oracle(text, n), 64)
        assert result["all"]["tokens"] == 16


def test_every_record_gets_a_fresh_drafter() -> None:
    made = []

    def make() -> Drafter:
        made.append(OffDrafter())
        return made[-1]

    replay(trace_of(("a", [1], [2, 3]), ("b", [4], [5, 6])), make, 4)
    assert len(made) == 2


def test_plain_decoding_is_one_token_and_one_node_per_step() -> None:
    trace = trace_of(("b", [1, 2], [3, 4, 5]), ("a", [1], [2, 3]), ("b", [7], [8, 9]))
    result = replay(trace, OffDrafter, 64, CostCurve([1, 2], [1, 1.5]))
    assert list(result) == ["a", "b", "all"]
    assert [summary["tokens"] for summary in result.values()] == [1, 3, 4]
    for summary in result.values():
        assert summary["mean_accepted_tokens"] == 1.0
        assert summary["nodes_per_step"] == 1.0
        assert summary["simulated_speedup"] == 1.0


def test_the_speedup_counts_the_root_of_every_step() -> None:
    text = list(range(8))
    trace = trace_of(("qa", text[:3], text[3:]))
    result = replay(trace, lambda: Oracle(text, 1), 8, CostCurve([1, 3], [1, 2]))
    # Steps of 3 and 2 nodes: budgets are 3 and 1, since the last token is never decoded.
    assert result["qa"]["simulated_speedup"] == pytest.approx(4 / (2 + 1.5))


def test_records_without_an_answer_to_decode_count_nothing() -> None:
    result = replay(trace_of(("a", [1, 2], []), ("a", [1], [2])), OffDrafter, 4, lambda n: 1.0)
    assert result["all"] == {
        "tokens": 0,
        "steps": 0,
        "mean_accepted_tokens": 0.0,
        "nodes_per_step": 0.0,
        "simulated_speedup": None,
        "reliability": [],
    }


def test_replay_is_deterministic() -> None:
    trace = trace_of(("a", [1, 2, 3] * 5, [1, 2, 3, 4] * 6))
    runs = [replay(trace, lambda: make_drafter(DraftConfig()), 16) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0]["all"]["mean_accepted_tokens"] > 2


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="must not be negative"):
        replay(trace_of(("a", [1], [2, 3])), OffDrafter, -1)
    with pytest.raises(TraceError, match="must not be named 'all'"):
        replay(trace_of(("all", [1], [2, 3])), OffDrafter, 1)


def test_a_cost_curve_is_straight_between_and_beyond_its_points() -> None:
    curve = read_cost_curve(f"{COSTS}:gpu_flat")
    assert [curve(n) for n in (1, 2, 8)] == [1.0, 1.05, 1.15]
    assert curve(3) == pytest.approx(1.075)
    assert curve(96) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("n", "t"),
    [([1], [1]), ([1, 2], [1]), ([2, 1], [1, 2]), ([1, 2], [1, 0]), ([1, 2], [1, float("nan")])],
)
def test_points_that_are_no_curve_are_refused(n: list[float], t: list[float]) -> None:
    with pytest.raises(ConfigError, match="a cost curve needs"):
        CostCurve(n, t)


@pytest.mark.parametrize(
    ("content", "curve", "message"),
    [
        ("{}", "x", "no cost curve 'x'; it has: "),
        ("[]", "x", "it has: none"),
        ("{", "x", "cannot read the cost curves"),
        ('{"x": 3}', "x", "not usable"),
        ('{"x": {"n": [1, 2]}}', "x", "not usable"),
        ('{"x": {"n": [1, "a"], "t": [1, 2]}}', "x", "not usable"),
        ('{"x": {"n": [1, 2], "t": [1, -2]}}', "x", "a cost curve needs"),
    ],
)
def test_a_cost_file_that_is_not_usable_is_refused(
    tmp_path: Path, content: str, curve: str, message: str
) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_cost_curve(f"{path}:{curve}")


@pytest.mark.parametrize("spec", ["costs.json", "costs.json:", ":x", ""])
def test_a_cost_without_a_file_or_a_curve_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"must be FILE\.json:CURVE"):
        read_cost_curve(spec)


def test_a_missing_cost_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the cost curves nowhere\.json"):
        read_cost_curve("nowhere.json:x")


def test_a_result_is_plain_json() -> None:
    result = replay(trace_of(("a", [1], [2, 3])), OffDrafter, 4, lambda n: 1.0)
    assert json.loads(json.dumps(result)) == result
