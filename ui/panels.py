"""Answers as HTML: figures, coloured text, plots. All text is escaped. Layer: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import Source

from .answer import LiveAnswer, Piece

__all__ = [
    "SOURCE_NAMES",
    "bar",
    "coloured",
    "context_meter",
    "figure_values",
    "figures",
    "legend",
    "note",
    "speed_panel",
    "step_plot",
]

SOURCE_NAMES = {
    Source.TARGET: ("model", "the model itself", "Written one at a time by the model."),
    Source.RETRIEVAL: (
        "retrieval",
        "seen in this text",
        "Guessed because the same words came before in this conversation (retrieval).",
    ),
    Source.LOGITS: (
        "logits",
        "the model's habit",
        "Guessed from what the model ranked high after the same words before (Copy-Logit).",
    ),
    Source.PHRASEBOOK: (
        "phrasebook",
        "phrase book",
        "Guessed from files that were indexed before.",
    ),
}
_PLOT_STEPS = 120
_PLOT_HEIGHT = 44
_FINISHED = {
    "stop": "finished",
    "length": "cut at the token limit",
    "cancelled": "stopped",
}


def note(text: str, kind: str = "info") -> str:
    """Show a message: ``info`` or ``error``; '' shows nothing."""
    if not text:
        return ""
    role = "alert" if kind == "error" else "status"
    return f'<div class="rl-note rl-{kind}" role="{role}">{escape(text)}</div>'


def bar(share: float, label: str) -> str:
    """Show progress from 0 to 1."""
    percent = round(100 * min(1.0, max(0.0, share)))
    return (
        f'<div class="rl-progress" role="progressbar" aria-valuenow="{percent}" '
        f'aria-valuemin="0" aria-valuemax="100"><div class="rl-fill" style="width:{percent}%">'
        f"</div><span>{escape(label)}</span></div>"
    )


def context_meter(n_used: int, n_ctx: int) -> str:
    """Show how full the model's memory of the conversation is."""
    share = min(1.0, n_used / n_ctx) if n_ctx else 0.0
    kind = "rl-full" if share > 0.9 else ""
    title = (
        "How much of the model's context this conversation fills. When it is full, undo, clear or "
        "shorten something; nothing is dropped silently."
    )
    return (
        f'<div class="rl-meter {kind}" title="{escape(title)}"><div class="rl-track">'
        f'<div class="rl-fill" style="width:{100 * share:.1f}%"></div></div>'
        f"<span>{n_used:,} of {n_ctx:,} tokens in context</span></div>"
    )


def figure_values(stats: Stats | None) -> tuple[str, str, str]:
    """Return tokens per second, tokens per step and the share of right guesses, as text."""
    if stats is None or not stats.n_steps:
        return "-", "-", "-"
    taken = f"{stats.acceptance:.0%}" if stats.n_drafted else "-"
    return f"{stats.tokens_per_s:.0f}", f"{stats.mean_accepted_tokens:.2f}", taken


def figures(stats: Stats | None) -> str:
    """Show the three numbers that sum up the speed."""
    speed, depth, taken = figure_values(stats)
    cells = (
        (speed, "tokens / s", "How fast the answer is written."),
        (depth, "tokens / step", "Tokens per pass of the model. Plain decoding has exactly 1."),
        (taken, "guesses right", "Share of the guessed tokens that the model agreed with."),
    )
    return (
        '<div class="rl-figures">'
        + "".join(
            f'<div title="{escape(title)}"><b>{value}</b><span>{name}</span></div>'
            for value, name, title in cells
        )
        + "</div>"
    )


def step_plot(counts: Sequence[int]) -> str:
    """Draw tokens per step, a bar for each of the last steps."""
    shown = list(counts[-_PLOT_STEPS:])
    if not shown:
        return ""
    most = max(*shown, 2)
    width = 6
    bars = []
    for number, count in enumerate(shown):
        height = max(1.0, _PLOT_HEIGHT * count / most)
        kind = "rl-gain" if count > 1 else "rl-one"
        bars.append(
            f'<rect class="{kind}" x="{number * width}" y="{_PLOT_HEIGHT - height:.1f}" '
            f'width="{width - 1}" height="{height:.1f}" rx="1"/>'
        )
    first = len(counts) - len(shown) + 1
    label = f"Tokens per step, steps {first} to {len(counts)}; the highest bar is {most}"
    return (
        f'<figure class="rl-plot"><svg viewBox="0 0 {max(len(shown), 40) * width} {_PLOT_HEIGHT}" '
        f'preserveAspectRatio="none" role="img" aria-label="{label}">{"".join(bars)}</svg>'
        f"<figcaption><span>tokens per step</span><span>steps {first} to {len(counts)}, "
        f"up to {most}</span></figcaption></figure>"
    )


def legend(pieces: Iterable[Piece]) -> str:
    """Name the sources and count their tokens."""
    counts = dict.fromkeys(SOURCE_NAMES, 0)
    for piece in pieces:
        counts[piece.source] += 1
    total = sum(counts.values()) or 1
    rows = []
    for source, (key, name, title) in SOURCE_NAMES.items():
        if source == Source.PHRASEBOOK and not counts[source]:
            continue
        rows.append(
            f'<li title="{escape(title)}"><mark class="rl-{key}">abc</mark> {escape(name)}'
            f"<b>{counts[source]}</b><i>{counts[source] / total:.0%}</i></li>"
        )
    return f'<ul class="rl-legend">{"".join(rows)}</ul>'


def coloured(pieces: Sequence[Piece]) -> str:
    """Mark every piece of text by its source: by colour and by the line under it."""
    parts = []
    for source, group in groupby(pieces, lambda piece: piece.source):
        text = "".join(piece.text for piece in group)
        if text:
            parts.append(f'<mark class="rl-{SOURCE_NAMES[source][0]}">{escape(text)}</mark>')
    return f'<div class="rl-coloured" dir="auto">{"".join(parts)}</div>'


def speed_panel(answer: LiveAnswer | None) -> str:
    """Show where the speed of an answer comes from; the coloured text once it is complete."""
    if answer is None or answer.stats is None:
        hint = "Ask something: every token of the answer will be marked by who came up with it."
        return (
            f'<section class="rl-speed">{figures(None)}{legend([])}'
            f'<p class="rl-hint">{hint}</p></section>'
        )
    pieces = list(answer.pieces)
    body = figures(answer.stats) + step_plot(answer.tokens_per_step()) + legend(pieces)
    if answer.done.is_set():
        how = _FINISHED.get(answer.finish_reason or "", "")
        stats = answer.stats
        read = f"{stats.n_prompt - stats.n_reused} prompt tokens read in {stats.prefill_s:.2f} s"
        kept = f", {stats.n_reused} kept from before" if stats.n_reused else ""
        facts = [f"{stats.n_generated} tokens", how, read + kept, f"drafting: {stats.draft}"]
        body += coloured(pieces)
        body += f'<p class="rl-hint">{escape(" · ".join(fact for fact in facts if fact))}</p>'
        body += "".join(note(text) for text in stats.notices)
    return f'<section class="rl-speed">{body}</section>'
