"""Sum a benchmark up: figures per mode and category, and a table of them. Layer: pure.

Of a category (and of ``all``) the answers are added up before anything is divided, so longer
answers weigh more. The speed is that of decoding: tokens after the first of each answer over the
seconds they took; reading the prompt is reported beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypedDict

from racer_local.bench.contest import BASE, EXACT, EXACT_BASE, BenchAnswer, base_of
from racer_local.bench.runner import Round
from racer_local.bench.suites import CATEGORIES

__all__ = ["Figures", "Modes", "summarize", "table"]

_CATEGORY_WIDTH = 16
_LINE_WIDTH = 100


class Figures(TypedDict):
    """What one mode did in one category.

    Attributes:
        tokens: tokens decoded: all but the first of each answer.
        seconds: time they took.
        tokens_per_s: their ratio; 0 where nothing was decoded.
        speedup: of plain decoding's speed on the same prompts; None where that is unknown.
        mean_accepted_tokens: decoded tokens per decode step.
        nodes_per_step: tokens evaluated per decode step, the step's own included.
        exact_speedup: of an exact mode: relative to exact plain decoding; None of others.
        same_as_plain: share of the answers with exactly the tokens of plain decoding; of an exact
            mode, of exact plain decoding.
        answers: how many.
        prompt_tokens: tokens of their prompts.
        prefill_s: seconds from the request to the first token, in all.
        total_speedup: like ``speedup``, with the first tokens and their time included.
    """

    tokens: int
    seconds: float
    tokens_per_s: float
    speedup: float | None
    exact_speedup: float | None
    mean_accepted_tokens: float
    nodes_per_step: float
    same_as_plain: float
    answers: int
    prompt_tokens: int
    prefill_s: float
    total_speedup: float | None


Modes: TypeAlias = dict[str, dict[str, Figures]]


def summarize(rounds: Sequence[Round], names: Sequence[str]) -> Modes:
    """Add the answers up.

    Args:
        rounds: what was measured.
        names: the contestants to report, in order; those without any answer are left out.

    Returns:
        Figures by mode and category, with one category named ``all``.
    """
    present = {round_.prompt.category for round_ in rounds}
    categories = [name for name in CATEGORIES if name in present]
    categories += sorted(present - set(categories))
    modes: Modes = {}
    for name in names:
        mine = [round_ for round_ in rounds if name in round_.answers]
        if not mine:
            continue
        groups = {c: [r for r in mine if r.prompt.category == c] for c in categories}
        modes[name] = {c: _figures(group, name) for c, group in groups.items() if group}
        modes[name]["all"] = _figures(mine, name)
    return modes


def _speed(answers: Sequence[BenchAnswer]) -> float:
    seconds = sum(answer.decode_s for answer in answers)
    return sum(answer.n_decoded for answer in answers) / seconds if seconds > 0 else 0.0


def _total_speed(answers: Sequence[BenchAnswer]) -> float:
    seconds = sum(answer.prefill_s + answer.decode_s for answer in answers)
    return sum(answer.n_decoded + 1 for answer in answers) / seconds if seconds > 0 else 0.0


def _ratio(mine: float, base: float) -> float | None:
    return mine / base if base > 0 else None


def _figures(rounds: Sequence[Round], name: str) -> Figures:
    answers = [round_.answers[name] for round_ in rounds]
    base = [round_.answers[BASE] for round_ in rounds]
    tokens = sum(answer.n_decoded for answer in answers)
    steps = sum(answer.n_steps for answer in answers)
    drafted = sum(answer.n_drafted for answer in answers)
    own = [round_.answers[base_of(name)] for round_ in rounds]
    same = sum(mine.tokens == plain.tokens for mine, plain in zip(answers, own, strict=True))
    return Figures(
        tokens=tokens,
        seconds=sum(answer.decode_s for answer in answers),
        tokens_per_s=_speed(answers),
        speedup=_ratio(_speed(answers), _speed(base)),
        exact_speedup=_ratio(_speed(answers), _speed(own)) if name.endswith(EXACT) else None,
        mean_accepted_tokens=tokens / steps if steps else 1.0,
        nodes_per_step=1.0 + drafted / steps if steps else 1.0,
        same_as_plain=same / len(answers),
        answers=len(answers),
        prompt_tokens=sum(round_.n_prompt for round_ in rounds),
        prefill_s=sum(answer.prefill_s for answer in answers),
        total_speedup=_ratio(_total_speed(answers), _total_speed(base)),
    )


def _times(value: float | None) -> str:
    return f"{value:.2f}x" if value is not None else "-"


def table(modes: Modes) -> str:
    """Write the figures as two plain tables: over all, and speedups by category."""
    if not modes:
        return "nothing was measured"
    wide = max(12, *(len(name) for name in modes)) + 2
    lines = [
        f"{'mode':<{wide}}{'tok/s':>8}{'speedup':>9}{'worst':>8}{'MAT':>7}{'nodes':>7}"
        f"{'same':>7}{'prompt s':>10}{'with it':>9}"
    ]
    for name, figures in modes.items():
        every = figures["all"]
        known = [row["speedup"] for row in figures.values() if row["speedup"] is not None]
        lines.append(
            f"{name:<{wide}}{every['tokens_per_s']:>8.1f}{_times(every['speedup']):>9}"
            f"{_times(min(known, default=None)):>8}{every['mean_accepted_tokens']:>7.2f}"
            f"{every['nodes_per_step']:>7.1f}{every['same_as_plain']:>7.0%}"
            f"{every['prefill_s']:>10.1f}{_times(every['total_speedup']):>9}"
        )
    if EXACT_BASE in modes:
        lines += ["", *_exactness(modes, wide)]
    columns = [name for name in modes if name != BASE]
    while columns:
        n_fit = _n_fitting(columns)
        lines += ["", *_by_category(modes, columns[:n_fit])]
        columns = columns[n_fit:]
    return "\n".join(lines)


def _exactness(modes: Modes, wide: int) -> list[str]:
    """Say what exactness costs, or brings: against both plain ones, and the mode without it."""
    heads = f"{BASE:>10}{EXACT_BASE:>12}{'not exact':>12}{'same as ' + EXACT_BASE:>20}"
    lines = [f"{'speed over':<{wide}}{heads}"]
    for name in modes:
        if not name.endswith(EXACT):
            continue
        mine, other = modes[name]["all"], modes.get(name.removesuffix(EXACT))
        over = _ratio(mine["tokens_per_s"], other["all"]["tokens_per_s"]) if other else None
        same = f"{round(mine['same_as_plain'] * mine['answers'])} of {mine['answers']}"
        lines.append(
            f"{name:<{wide}}{_times(mine['speedup']):>10}{_times(mine['exact_speedup']):>12}"
            f"{_times(over):>12}{same:>20}"
        )
    return lines


def _width(name: str) -> int:
    return max(8, len(name) + 2)


def _n_fitting(columns: Sequence[str]) -> int:
    """Count the columns that fit one line; at least one."""
    n, used = 0, _CATEGORY_WIDTH
    for name in columns:
        used += _width(name)
        if n and used > _LINE_WIDTH:
            break
        n += 1
    return n


def _by_category(modes: Modes, columns: Sequence[str]) -> list[str]:
    heads = "".join(f"{name:>{_width(name)}}" for name in columns)
    lines = [f"{'speedup':<{_CATEGORY_WIDTH}}{heads}"]
    for category in modes[BASE]:
        cells = ""
        for name in columns:
            row = modes[name].get(category)
            cells += f"{_times(row['speedup'] if row else None):>{_width(name)}}"
        lines.append(f"{category:<{_CATEGORY_WIDTH}}{cells}")
    return lines
