"""Step through the draft trees of the last answer."""

from __future__ import annotations

from typing import Any

import gradio as gr

from .answer import LiveAnswer, StepView
from .tree_view import describe_step, draw_step

__all__ = ["TreeTab"]

_HINT = (
    "<p class='rl-hint'>Each box is a guess with its chance to be taken. The model checks the "
    "whole tree in one pass; the thick path is what it agreed with.</p>"
)
_NOTHING = "<p class='rl-hint'>Ask something in the Chat tab first.</p>"
_NO_GUESSES = (
    "<p class='rl-hint'>Nothing was guessed in the last answer: no guess was worth its time, or "
    "drafting is off. Clear “only steps with guesses” to see the plain steps, or choose “racer” at "
    "the side and ask again.</p>"
)


class TreeTab:
    """The components of the tab and what they do."""

    def __init__(self, last: Any, tab: gr.Tab) -> None:
        """Build the tab where the caller's layout stands.

        Args:
            last: state that holds the session's last answer.
            tab: the tab; opening it shows the first step.
        """
        gr.HTML(_HINT)
        with gr.Row(equal_height=True, elem_classes="rl-composer"):
            back = gr.Button("◀ Back", scale=1, min_width=80, elem_id="rl-tree-back")
            self._step = gr.Slider(
                1,
                2,
                value=1,
                step=1,
                label="Step",
                scale=6,
                elem_id="rl-tree-step",
                buttons=[],
            )
            on = gr.Button("On ▶", scale=1, min_width=80, elem_id="rl-tree-on")
        self._skip = gr.Checkbox(
            True, label="only steps with guesses", container=False, elem_id="rl-tree-skip"
        )
        self._said = gr.HTML("", elem_id="rl-tree-said")
        self._tree = gr.HTML(_NOTHING, elem_id="rl-tree")
        shown = [self._step, self._said, self._tree]
        quick: dict[str, Any] = {
            "queue": False,
            "show_progress": "hidden",
            "api_visibility": "private",
        }
        tab.select(self._open, [last, self._skip], shown, **quick)
        self._skip.input(self._open, [last, self._skip], shown, **quick)
        asked = [last, self._skip, self._step]
        self._step.input(self._show, asked, shown, **quick)
        back.click(lambda a, b, n: self._show(a, b, n - 1), asked, shown, **quick)
        on.click(lambda a, b, n: self._show(a, b, n + 1), asked, shown, **quick)

    def _open(self, last: LiveAnswer | None, only_guesses: bool) -> dict[Any, Any]:
        return self._show(last, only_guesses, 1)

    def _show(self, last: LiveAnswer | None, only_guesses: bool, number: float) -> dict[Any, Any]:
        steps = _steps(last, only_guesses)
        if not steps:
            text = _NO_GUESSES if last is not None and last.steps else _NOTHING
            return {self._step: gr.update(value=1, maximum=2), self._said: "", self._tree: text}
        place = min(max(1, int(number or 1)), len(steps))
        step = steps[place - 1]
        return {
            self._step: gr.update(
                value=place, maximum=max(2, len(steps)), label=f"Step {place} of {len(steps)}"
            ),
            self._said: f'<p class="rl-said">{describe_step(step)}</p>',
            self._tree: draw_step(step),
        }


def _steps(last: LiveAnswer | None, only_guesses: bool) -> list[StepView]:
    steps = last.steps if last is not None else []
    return [step for step in steps if len(step.texts) > 1] if only_guesses else list(steps)
