"""``racer-local replay``: drive a drafter over a recorded trace."""

from __future__ import annotations

import json
from typing import Any

import click

from racer_local.cli.options import draft_config, draft_options

__all__ = ["command"]


@click.command("replay")
@click.argument("trace", metavar="TRACE.npz")
@draft_options
@click.option("--cost", metavar="FILE.json:CURVE", help="Relative cost of a step of n tokens.")
@click.option("--row-memory", metavar="FILE", help="Rows of other texts, for --draft auto.")
@click.option("--json", "json_path", metavar="FILE", help="Write the figures to FILE; - is stdout.")
@click.option("--debug", is_flag=True, help="Show a traceback if something fails.")
def command(
    trace: str, cost: str | None, row_memory: str | None, json_path: str | None, **options: Any
) -> int:
    """Drive a drafter over a recorded trace: tokens per step, without any model.

    \b
    Examples:
      racer-local replay trace.npz --draft racer --budget 16
      racer-local replay trace.npz --cost costs.json:gpu_flat --json -
    """
    from racer_local.bench.replay import replay
    from racer_local.bench.trace import read_trace
    from racer_local.drafting.auto.estimate import Estimator
    from racer_local.drafting.auto.row_memory import RowMemory
    from racer_local.drafting.make import make_drafter
    from racer_local.measuring.cost import CostModel, read_cost_curve

    config = draft_config(options)
    curve = read_cost_curve(cost) if cost is not None else None
    model = CostModel.of_curve(curve) if curve is not None else None
    memory = RowMemory.load(row_memory) if row_memory is not None else None
    # Every record is a fresh text; estimates go on from one to the next, as in one process.
    estimator = Estimator()
    result = replay(
        read_trace(trace),
        lambda: make_drafter(config, model, memory, estimator),
        config.budget,
        curve,
    )
    if json_path == "-":
        click.echo(json.dumps(result))
        return 0
    if json_path is not None:
        with click.open_file(json_path, "w", encoding="utf-8", atomic=True) as file:
            json.dump(result, file, indent=1)
    click.echo(_table(result))
    return 0


def _table(result: Any) -> str:
    lines = [f"{'category':<16}{'tokens':>8}{'steps':>8}{'MAT':>7}{'nodes':>7}{'speedup':>9}"]
    for category, row in result.items():
        speedup = row["simulated_speedup"]
        shown = f"{speedup:.2f}x" if speedup is not None else "-"
        lines.append(
            f"{category:<16}{row['tokens']:>8}{row['steps']:>8}{row['mean_accepted_tokens']:>7.2f}"
            f"{row['nodes_per_step']:>7.1f}{shown:>9}"
        )
    return "\n".join(lines)
