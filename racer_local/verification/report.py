"""Tell in words, and as JSON, what the checks found. Layer: pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from racer_local.verification.agreement import Agreement
from racer_local.verification.chi_square import Fit
from racer_local.verification.runner import Findings, Setting

__all__ = ["as_dict", "faults", "report", "verdict"]

# Logits of the smallest models move by up to about this much when batches round differently.
NEAR_TIE = 1.0
# Counts from the right distribution would fit so badly once in a thousand runs of all tests.
_MIN_P = 0.001
# A table of 80 columns.
_LABEL, _CELL, _LINE = 38, 20, 80


def faults(findings: Findings) -> list[str]:
    """List what rounding cannot explain: mistakes of the program; none is the rule."""
    found = _setting_faults(findings.default, "")
    if findings.exact is not None:
        found += _setting_faults(findings.exact, "with --exact, ")
        found += _exact_faults(findings.exact)
    return list(dict.fromkeys(found))


def _setting_faults(setting: Setting, where: str) -> list[str]:
    found = []
    if setting.failure is not None:
        found.append(f"{where}a batch was refused: {setting.failure}")
    if any(facts.tree_is_identical is False for facts in setting.rows):
        found.append(
            f"{where}a branch of a draft tree is computed differently when another one is beside "
            "it: the attention mask is broken"
        )
    if any(facts.repair_is_identical is False for facts in setting.rows):
        found.append(
            f"{where}text is computed differently after a side branch has won: its cells are not "
            "put back in order"
        )
    if setting.sampler is not None:
        found.append(where + setting.sampler)
    for agreement in (*setting.greedy.values(), *setting.seeded.values()):
        if agreement in setting.greedy.values():
            far = [d for d in agreement.differences if not d.gap < NEAR_TIE]
            if far:
                found.append(
                    f"{where}an answer left plain decoding at a token that was no near-tie (gap "
                    f"{max(d.gap for d in far):.2f}): that is no rounding"
                )
    p = worst_p(setting)
    if p < _MIN_P:
        found.append(f"{where}sampled tokens do not have the model's distribution (p {p:.1g})")
    return found


def _exact_faults(setting: Setting) -> list[str]:
    found = []
    for kind, agreements in (("greedy", setting.greedy), ("seeded", setting.seeded)):
        for name, agreement in agreements.items():
            n = len(agreement.differences)
            if n:
                found.append(
                    f"with --exact, {n} of {agreement.n_answers} {kind} answers of {name} differ "
                    "from plain decoding"
                )
    if any(facts.n_identical < facts.n_tried for facts in setting.rows):
        found.append("with --exact, rows of the allowed trees are not identical in some context")
    return found


def worst_p(setting: Setting) -> float:
    """Return the smallest p of all draws, corrected for how many there are; 1 without any."""
    fits = [fit for fits in setting.draws.values() for fit in fits if fit.freedom]
    return min(1.0, min((fit.p for fit in fits), default=1.0) * max(len(fits), 1))


def verdict(findings: Findings) -> str:
    """Say in a sentence or two what a user can rely on."""
    wrong = faults(findings)
    if wrong:
        return "FAULT: " + "; ".join(wrong) + ". Please report this."
    default = _total(findings.default.greedy.values())
    gaps = [d.gap for a in findings.default.greedy.values() for d in a.differences]
    usual = f"without it {default.n_same} of {default.n_answers} greedy answers are the same"
    if gaps:
        usual += f", and the others part at near-ties (logits at most {max(gaps):.2g} apart)"
    exact = findings.exact
    if exact is None:
        return f"--exact cannot be had here: {findings.refusal}. Decoding {usual}."
    if not exact.max_nodes:
        return (
            f"No drafts are possible with this model, so every answer is plain decoding; {usual}."
        )
    total = _total((*exact.greedy.values(), *exact.seeded.values()))
    return (
        f"--exact holds: all {total.n_answers} answers ({total.n_tokens} tokens) are those of "
        f"plain decoding token by token, greedy and seeded, with trees of up to "
        f"{exact.max_nodes} drafts; {usual}. Sampling keeps the model's distribution."
    )


def _total(agreements: Iterable[Agreement]) -> Agreement:
    total = Agreement()
    for agreement in agreements:
        total.n_answers += agreement.n_answers
        total.n_tokens += agreement.n_tokens
        total.differences += agreement.differences
    return total


def report(findings: Findings) -> str:
    """Write everything down as a table, verdict last."""
    settings = [findings.default, *([findings.exact] if findings.exact else [])]
    lines = [_line("", ["default", "--exact"][: len(settings)])]
    for i, facts in enumerate(findings.default.rows):
        cells = [_rows(setting, i) for setting in settings]
        lines.append(_line(f"rows like single ones, at {facts.n_context}", cells))
    lines.append(_line("branches do not see each other", [_trees(s) for s in settings]))
    lines.append(_line("order kept when a side branch wins", [_repairs(s) for s in settings]))
    for kind in ("greedy", "seeded"):
        for name in getattr(findings.default, kind):
            cells = [_same(getattr(setting, kind).get(name)) for setting in settings]
            lines.append(_line(f"{kind}: {name} = plain", cells))
    lines.append(
        _line("penalties follow the rules", ["no" if s.sampler else "yes" for s in settings])
    )
    for name in findings.default.draws:
        lines.append(
            _line(f"tokens drawn with {name}, p", [_fit(s.draws.get(name, [])) for s in settings])
        )
    lines += [*_differences(findings.default), ""]
    lines += textwrap.wrap("Verdict: " + verdict(findings), _LINE, break_on_hyphens=False)
    return "\n".join(lines)


def _line(label: str, cells: list[str]) -> str:
    return f"{label:<{_LABEL}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)


def _rows(setting: Setting, i: int) -> str:
    if i >= len(setting.rows):
        return "-"
    facts = setting.rows[i]
    if facts.n_identical == facts.n_tried:
        return f"all ({facts.n_tried})"
    return f"up to {facts.n_identical}" if facts.n_identical > 1 else "none"


def _yes(values: list[bool | None]) -> str:
    known = [value for value in values if value is not None]
    return "-" if not known else "yes" if all(known) else "no"


def _trees(setting: Setting) -> str:
    return _yes([facts.tree_is_identical for facts in setting.rows])


def _repairs(setting: Setting) -> str:
    return _yes([facts.repair_is_identical for facts in setting.rows])


def _same(agreement: Agreement | None) -> str:
    return "-" if agreement is None else f"{agreement.n_same} of {agreement.n_answers}"


def _fit(fits: list[Fit]) -> str:
    used = [fit for fit in fits if fit.freedom]
    if not used:
        return "-"
    return f"{sum(f.n_draws for f in used):,}, p {min(f.p for f in used):.3f}"


def _differences(setting: Setting) -> list[str]:
    lines = []
    for name, agreement in setting.greedy.items():
        for d in agreement.differences[:5]:
            lines.append(
                f"  {name}, prompt {d.prompt + 1}: token {d.at + 1} differs, "
                f"logits {d.gap:.3g} apart"
            )
    return ["", "where greedy answers part without --exact:", *lines] if lines else []


def as_dict(findings: Findings) -> dict[str, Any]:
    """Return all figures as plain JSON values; what is not finite becomes null."""
    result: dict[str, Any] = _finite(asdict(findings))
    result["faults"] = faults(findings)
    result["verdict"] = verdict(findings)
    return result


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
