"""Benchmark figures as bars. Layer: pure."""

from __future__ import annotations

from html import escape

from racer_local.bench.contest import BASE
from racer_local.bench.report import Modes

__all__ = ["bench_plot"]


def bench_plot(modes: Modes) -> str:
    """Draw the speed of each mode in each category, relative to plain decoding."""
    drawn = [name for name in modes if name != BASE]
    if BASE not in modes or not drawn:
        return ""
    speedups = [figure["speedup"] or 0.0 for name in drawn for figure in modes[name].values()]
    most = max([1.5, *speedups]) * 1.05
    rows = []
    for category, base in modes[BASE].items():
        shown = "all together" if category == "all" else category.replace("_", " ")
        bars = "".join(
            _bar(
                name, modes[name][category]["speedup"], most, modes[name][category]["tokens_per_s"]
            )
            for name in drawn
            if category in modes[name]
        )
        rows.append(
            f'<div class="rl-bench-row"><h4>{escape(shown)}<span>plain: '
            f"{base['tokens_per_s']:.0f} tokens/s</span></h4>{bars}</div>"
        )
    line = f'<div class="rl-bench" style="--one:{100 / most:.2f}%">{"".join(rows)}'
    caption = "The line is plain decoding in the same run (1.0x); longer bars are faster."
    return f'{line}</div><p class="rl-hint">{caption}</p>'


def _bar(name: str, speedup: float | None, most: float, tokens_per_s: float) -> str:
    value = speedup or 0.0
    kind = "rl-gain" if value >= 1.0 else "rl-loss"
    return (
        f'<div class="rl-bench-bar {kind}"><i>{escape(name)}</i><div class="rl-lane">'
        f'<div style="width:{100 * value / most:.1f}%"></div></div>'
        f"<b>{value:.2f}x</b><span>{tokens_per_s:.0f} tokens/s</span></div>"
    )
