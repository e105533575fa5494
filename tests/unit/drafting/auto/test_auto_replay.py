"""What the cost-aware drafter reaches on recorded text: floors, deterministic.

The shipped weights were fitted to this text, so these are floors for regressions; figures for
text that was held out are in the module that fits them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from racer_local.bench.replay import Result, replay
from racer_local.bench.trace import Trace, read_trace, write_trace
from racer_local.cli import main as cli
from racer_local.config import DraftConfig
from racer_local.drafting.auto.estimate import N_CELLS, Estimator
from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.drafting.make import make_drafter
from racer_local.errors import TraceError
from racer_local.measuring.cost import CostModel, read_cost_curve
from racer_local.research.fit_priors import examples, fit, fit_records, main, memory_of
from racer_local.research.oracle import oracle

DATA = Path(__file__).parents[3] / "data"
FLOORS = {"smollm2_q4_0": 1.34, "llama_1b_q4_k_m": 1.27, "smollm2_q4_1": 1.22, "gpu_flat": 2.60}


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(DATA / "smollm2_q4_1.npz")


def run(
    trace: Trace, curve: str, estimator: Estimator | None = None, memory: RowMemory | None = None
) -> Result:
    cost = read_cost_curve(f"{DATA / 'costs.json'}:{curve}")
    model, estimator = CostModel.of_curve(cost, 65), estimator or Estimator()
    config = DraftConfig(mode="auto")
    return replay(trace, lambda: make_drafter(config, model, memory, estimator), 64, cost)


@pytest.mark.parametrize(("curve", "floor"), list(FLOORS.items()))
def test_it_gains_on_every_curve_and_loses_in_no_category(
    trace: Trace, curve: str, floor: float
) -> None:
    result = run(trace, curve)
    speedups = {name: summary["simulated_speedup"] for name, summary in result.items()}
    assert speedups["all"] is not None
    assert speedups["all"] >= floor
    assert min(speedup for speedup in speedups.values() if speedup is not None) >= 1.0
    for bin_ in result["all"]["reliability"]:
        # Chance alone makes that of so many nodes.
        strays = math.sqrt(bin_["estimated"] * (1 - bin_["estimated"]) / bin_["count"])
        assert abs(bin_["estimated"] - bin_["taken"]) < 0.03 + 2 * strays, bin_


def test_without_the_shipped_weights_it_still_gains(trace: Trace) -> None:
    for curve, floor in (("smollm2_q4_0", 1.28), ("gpu_flat", 2.45)):
        speedup = run(trace, curve, Estimator([0.0] * N_CELLS))["all"]["simulated_speedup"]
        assert speedup is not None
        assert speedup >= floor


def test_rows_of_other_texts_help_on_a_flat_curve(trace: Trace) -> None:
    records = list(trace)
    tokens = cost = 0.0
    for part in range(3):
        memory = memory_of([record for i, record in enumerate(records) if i % 3 != part])
        summary = run(trace.select(range(part, len(records), 3)), "gpu_flat", None, memory)["all"]
        assert summary["simulated_speedup"] is not None
        tokens += summary["tokens"]
        cost += summary["tokens"] / summary["simulated_speedup"]
    assert tokens / cost >= 2.75


def test_it_is_faster_than_any_fixed_budget(trace: Trace) -> None:
    cost = read_cost_curve(f"{DATA / 'costs.json'}:gpu_flat")
    part = trace.select(range(0, len(trace), 6))
    auto = run(part, "gpu_flat")["all"]["simulated_speedup"]
    assert auto is not None
    for budget in (4, 8, 16, 32, 64):
        config = DraftConfig(mode="racer", budget=budget)
        fixed = replay(part, lambda c=config: make_drafter(c), budget, cost)["all"]
        assert fixed["simulated_speedup"] is not None
        assert auto > fixed["simulated_speedup"]


def test_replay_of_it_is_deterministic(trace: Trace) -> None:
    part = trace.select(range(4))
    assert run(part, "gpu_flat") == run(part, "gpu_flat")


def test_perfect_foresight_bounds_it(trace: Trace) -> None:
    part = trace.select(range(0, len(trace), 6))
    for curve in ("smollm2_q4_0", "gpu_flat"):
        cost = read_cost_curve(f"{DATA / 'costs.json'}:{curve}")
        best = oracle(part, cost)
        reached = run(part, curve)
        assert best["all"] > (reached["all"]["simulated_speedup"] or 0)
        assert set(best) == set(reached)


def test_a_selection_of_records_is_a_trace_of_its_own(trace: Trace) -> None:
    some = trace.select([5, 0])
    records = list(trace)
    assert len(some) == 2
    for selected, original in zip(some, (records[5], records[0]), strict=True):
        assert selected.category == original.category
        assert selected.n_prompt == original.n_prompt
        assert selected.tokens.tolist() == original.tokens.tolist()
        assert selected.topk_probs.tolist() == original.topk_probs.tolist()
    with pytest.raises(TraceError, match="no records"):
        trace.select([])
    with pytest.raises(IndexError):
        trace.select([len(trace)])


def test_weights_are_fitted_to_what_was_known_before(trace: Trace) -> None:
    records = list(trace.select(range(3)))
    weights = fit_records(records)
    assert len(weights) == N_CELLS
    assert any(weights)
    found = examples(records[0], None, weights)
    n_answer = len(records[0].tokens) - records[0].n_prompt
    # Seen from up to four places each, fewer at the end.
    assert 3 * n_answer < len(found) < 4 * n_answer
    assert all(-1 <= each.taken < len(each.cells) for each in found)
    assert fit(found) == fit(found)


def test_weights_are_written_as_a_module(
    trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.npz"
    write_trace(path, trace.select([0]))
    main([str(path)])
    module: dict[str, object] = {}
    exec(compile(capsys.readouterr().out, "weights", "exec"), module)
    weights = module["PRIOR_CENTI_WEIGHTS"]
    assert isinstance(weights, tuple)
    assert len(weights) == N_CELLS


def test_the_command_takes_a_row_memory_and_reports_reliability(
    trace: Trace, tmp_path: Path
) -> None:
    path, memory, figures = (tmp_path / name for name in ("t.npz", "rows.npz", "out.json"))
    write_trace(path, trace.select([0, 1]))
    memory_of(list(trace.select([2, 3]))).save(memory)
    arguments = ["replay", str(path), "--draft", "auto", "--row-memory", str(memory)]
    curve = f"{DATA / 'costs.json'}:gpu_flat"
    with pytest.raises(SystemExit, match=r"^0$"):
        cli([*arguments, "--cost", curve, "--json", str(figures)])
    summary = json.loads(figures.read_text(encoding="utf-8"))["all"]
    assert summary["simulated_speedup"] > 1
    assert {"low", "high", "count", "estimated", "taken"} == set(summary["reliability"][0])
    memory.write_bytes(b"nothing")
    with pytest.raises(SystemExit, match=r"^2$"):
        cli([*arguments, "--cost", curve])
