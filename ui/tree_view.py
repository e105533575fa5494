"""One decode step as a picture: what was guessed, what the model took. Layer: pure."""

from __future__ import annotations

from html import escape

from racer_local.speculation.tree import Source

from .answer import StepView
from .panels import SOURCE_NAMES

__all__ = ["describe_step", "draw_step", "visible"]

_COLUMN = 132
_ROW = 46
_NODE_WIDTH = 112
_NODE_HEIGHT = 34
_MARGIN = 10
_MAX_LABEL = 13


def visible(text: str) -> str:
    """Make white space visible, and shorten what does not fit into a node."""
    shown = text.replace("\n", "⏎").replace("\t", "⇥").replace("\r", "␍")
    shown = shown.replace(" ", "␣") if not shown.strip() else shown
    return shown if len(shown) <= _MAX_LABEL else shown[: _MAX_LABEL - 1] + "…"


def describe_step(step: StepView) -> str:
    """Say in words what happened in a step."""
    n_guessed, n_right = len(step.texts) - 1, len(step.accepted) - 1
    said = f"then the model said “{escape(visible(step.next_text))}”"
    if not n_guessed:
        return f"Step {step.number}: nothing was guessed; {said.removeprefix('then ')}."
    guessed = "guess" if n_guessed == 1 else "guesses"
    return (
        f"Step {step.number}: {n_guessed} {guessed} checked in one pass, {n_right} taken; {said}: "
        f"<b>{n_right + 1} {'token' if n_right == 0 else 'tokens'}</b> in one step."
    )


def _places(step: StepView) -> tuple[list[int], list[int], int]:
    """Return column and row of each node, and the number of rows; first children go straight."""
    children: list[list[int]] = [[] for _ in step.texts]
    columns = [0] * len(step.texts)
    for node, parent in enumerate(step.parents):
        if parent >= 0:
            children[parent].append(node)
            columns[node] = columns[parent] + 1
    rows = [0] * len(step.texts)
    n_rows = 0
    open_nodes = [0]
    while open_nodes:
        node = open_nodes.pop()
        is_first = step.parents[node] >= 0 and children[step.parents[node]][0] == node
        if node and not is_first:
            n_rows += 1
        rows[node] = n_rows
        open_nodes.extend(reversed(children[node]))
    return columns, rows, n_rows + 1


def draw_step(step: StepView) -> str:
    """Draw the tree from left to right; the accepted path is filled and its lines are thick."""
    columns, rows, n_rows = _places(step)
    accepted = set(step.accepted)
    width = (max(columns) + 1) * _COLUMN + 2 * _MARGIN
    height = n_rows * _ROW + 2 * _MARGIN
    lines, nodes = [], []
    for node, text in enumerate(step.texts):
        x, y = _MARGIN + columns[node] * _COLUMN, _MARGIN + rows[node] * _ROW
        parent = step.parents[node]
        state = "rl-taken" if node in accepted else "rl-left"
        if parent >= 0:
            from_x = _MARGIN + columns[parent] * _COLUMN + _NODE_WIDTH
            from_y = _MARGIN + rows[parent] * _ROW + _NODE_HEIGHT // 2
            middle = (from_x + x) // 2
            to_y = y + _NODE_HEIGHT // 2
            lines.append(
                f'<path class="rl-edge {state}" d="M{from_x} {from_y} C{middle} {from_y} '
                f'{middle} {to_y} {x} {to_y}"/>'
            )
        nodes.append(_node(step, node, x, y, state, text))
    label = f"Draft tree of step {step.number}: {len(step.texts) - 1} guesses"
    return (
        f'<div class="rl-tree" tabindex="0"><svg width="{width}" height="{height}" role="img" '
        f'aria-label="{label}">{"".join(lines)}{"".join(nodes)}</svg></div>'
    )


def _node(step: StepView, node: int, x: int, y: int, state: str, text: str) -> str:
    source = step.sources[node]
    key, name, _ = SOURCE_NAMES[source]
    if node == 0:
        key, below, title = "root", "already certain", "The last token before this step"
    else:
        chance = "" if step.probs[node] >= 1.0 else f"{step.probs[node]:.0%} · "
        below = f"{chance}{'habit' if source == Source.LOGITS else key}"
        fate = "taken" if state == "rl-taken" else "not taken"
        title = f"{name}; {chance}{fate}"
    middle = x + _NODE_WIDTH // 2
    return (
        f'<g class="rl-node rl-{key} {state}"><title>{escape(title)}: {escape(repr(text))}</title>'
        f'<rect x="{x}" y="{y}" width="{_NODE_WIDTH}" height="{_NODE_HEIGHT}" rx="7"/>'
        f'<text x="{middle}" y="{y + 15}">{escape(visible(text))}</text>'
        f'<text class="rl-small" x="{middle}" y="{y + 28}">{escape(below)}</text></g>'
    )
