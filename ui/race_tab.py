"""One prompt twice: without guesses and with them, side by side."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr

from racer_local.config import DraftConfig
from racer_local.errors import ConfigError

from .answer import LiveAnswer
from .controls import Controls
from .examples import CHANGE_CODE
from .panels import coloured, note
from .service import Ask, PageService, explain
from .turns import Turn

__all__ = ["RaceTab", "lane", "verdict"]

_WAIT_S = 0.25
_PLAIN = DraftConfig(mode="off")
# Fewer tokens than this say little about speed.
_ENOUGH_TOKENS = 32


class RaceTab:
    """The components of the tab and what they do."""

    def __init__(self, service: PageService, controls: Controls) -> None:
        """Build the tab where the caller's layout stands."""
        self._service = service
        gr.HTML(
            "<p class='rl-hint'>The same prompt, model and settings, one after the other: first "
            "plain decoding, then with guesses.</p>"
        )
        with gr.Row(elem_classes="rl-composer", equal_height=True):
            prompt = gr.Textbox(
                CHANGE_CODE,
                label="Prompt",
                show_label=False,
                container=False,
                lines=2,
                max_lines=6,
                scale=8,
                elem_id="rl-race-prompt",
            )
            self._go = gr.Button(
                "Race", variant="primary", scale=1, min_width=84, elem_id="rl-race-go"
            )
            self._stop = gr.Button(
                "Stop",
                variant="stop",
                scale=1,
                min_width=84,
                visible=False,
                elem_id="rl-race-stop",
            )
        self._verdict = gr.HTML("", elem_id="rl-verdict")
        with gr.Row():
            with gr.Column(min_width=300):
                self._plain = gr.HTML(lane("Plain", None), elem_id="rl-race-plain")
            with gr.Column(min_width=300):
                self._drafted = gr.HTML(lane("RACER", None), elem_id="rl-race-drafted")
        shown = [self._plain, self._drafted, self._verdict, self._go, self._stop]
        calm: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        gr.on(
            [self._go.click, prompt.submit],
            self._race,
            [prompt, *controls.inputs],
            shown,
            concurrency_limit=None,
            **calm,
        )
        self._stop.click(self._end, None, None, queue=False, **calm)

    def _end(self, request: gr.Request) -> None:
        self._service.stop(f"{request.session_hash} race")

    def _race(self, request: gr.Request, prompt: str, *values: Any) -> Iterator[dict[Any, Any]]:
        idle = {self._go: gr.update(visible=True), self._stop: gr.update(visible=False)}
        yield {
            self._plain: lane("Plain", None),
            self._drafted: lane("RACER", None),
            self._verdict: "",
            self._go: gr.update(visible=False),
            self._stop: gr.update(visible=True),
        }
        try:
            if not prompt or not prompt.strip():
                raise ConfigError("the prompt is empty; give some text")
            ask = Controls.ask([{"role": "user", "content": prompt}], values, is_fresh=True)
            if ask.sampling.seed is None:
                # Both draw the same random numbers.
                seed = random.SystemRandom().randrange(2**31)
                ask = replace(ask, sampling=replace(ask.sampling, seed=seed))
            with self._service.take_turn(f"{request.session_hash} race") as turn:
                while not turn.wait(_WAIT_S):
                    yield {self._verdict: note(turn.waits_for)}
                yield from self._run(ask, turn)
        except Exception as error:  # noqa: BLE001  # the page shows it
            yield {self._verdict: note(explain(error), "error")}
        yield idle

    def _run(self, ask: Ask, turn: Turn) -> Iterator[dict[Any, Any]]:
        answers = []
        for name, place, draft in (
            ("Plain", self._plain, _PLAIN),
            ("RACER", self._drafted, ask.draft),
        ):
            if turn.is_cancelled.is_set():
                break
            yield {place: lane(name, LiveAnswer()), self._verdict: note(f"{name} is answering …")}
            self._warm_up(ask, draft, turn)
            for number, answer in enumerate(self._service.answer(replace(ask, draft=draft), turn)):
                if answer.done.is_set() or number % 2 == 0:
                    yield {place: lane(name, answer)}
            if answer.error:
                yield {self._verdict: note(answer.error, "error")}
                return
            answers.append(answer)
        if turn.is_cancelled.is_set():
            yield {self._verdict: note("Stopped.")}
        else:
            yield {self._verdict: verdict(*answers, greedy=ask.sampling.temperature == 0)}

    def _warm_up(self, ask: Ask, draft: DraftConfig, turn: Turn) -> None:
        """Let the mode measure its costs and touch its memory before the clock runs."""
        brief = replace(ask, draft=draft, limits=replace(ask.limits, max_tokens=2))
        for _ in self._service.answer(brief, turn):
            pass


def lane(name: str, answer: LiveAnswer | None) -> str:
    """Show one side of the race."""
    stats = answer.stats if answer is not None else None
    seconds = stats.prefill_s + stats.decode_s if stats is not None else 0.0
    sub = "ready"
    if stats is not None and answer is not None:
        state = "" if answer.done.is_set() else " · running"
        sub = f"{stats.tokens_per_s:.0f} tokens/s · {stats.n_generated} tokens{state}"
        if stats.n_drafted:
            sub += f" · {stats.mean_accepted_tokens:.2f} per step"
    elif answer is not None:
        sub = "starting"
    text = coloured(list(answer.pieces)) if answer is not None else ""
    text = text.replace('class="rl-coloured"', 'class="rl-lane-text"', 1)
    empty = '<div class="rl-lane-text"></div>'
    return (
        f'<section><div class="rl-lane-head"><h3>{escape(name)}</h3>'
        f'<span class="rl-clock">{seconds:.2f} s</span></div>'
        f'<div class="rl-lane-sub">{escape(sub)}</div>{text or empty}</section>'
    )


def verdict(plain: LiveAnswer, drafted: LiveAnswer, *, greedy: bool) -> str:
    """Say who was faster, by how much, and whether both wrote the same."""
    assert plain.stats is not None
    assert drafted.stats is not None
    base, mine = plain.stats.tokens_per_s, drafted.stats.tokens_per_s
    if drafted.stats.draft == "off":
        first = "<b>Both sides decoded plainly</b>: choose a way to guess at the side."
    elif not base or not mine:
        first = "<b>Too short to compare</b>: there was no second token."
    elif mine >= base * 1.02:
        first = (
            f"<b>RACER was {mine / base:.2f} times as fast</b> ({mine:.0f} against {base:.0f} "
            "tokens/s)."
        )
    elif mine <= base * 0.98:
        first = (
            f"<b>RACER was slower here, {mine / base:.2f}x</b> ({mine:.0f} against {base:.0f} "
            "tokens/s): this text gave little to guess from, or the budget is too large."
        )
    else:
        first = f"<b>Equally fast</b> ({mine:.0f} and {base:.0f} tokens/s)."
    if min(plain.stats.n_generated, drafted.stats.n_generated) < _ENOUGH_TOKENS:
        first += " With so few tokens that says little; try a longer answer."
    if plain.text == drafted.text:
        second = "Both wrote exactly the same text."
    else:
        same = _common(plain.text, drafted.text)
        draws = "" if greedy else " With the same seed they draw the same numbers, but"
        second = (
            f"The texts part after {same} characters.{draws} two tokens were almost equally "
            "likely there, and the last bits of a sum differ when several tokens are computed "
            "at once. Both are the model's own choice. “exact” at the side makes them equal."
        )
    return f'<div class="rl-verdict" role="status">{first}<p>{escape(second)}</p></div>'


def _common(one: str, other: str) -> int:
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
