"""Measure the model on bundled prompts and draw the speed per category."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from racer_local.bench.contest import BASE, BenchModel, ModeContestant
from racer_local.bench.report import summarize
from racer_local.bench.runner import Race, Round
from racer_local.bench.suites import CATEGORIES, choose
from racer_local.config import DraftConfig
from racer_local.errors import ConfigError

from .bench_view import bench_plot
from .panels import bar, note
from .service import PageService, explain
from .turns import Turn

__all__ = ["BenchTab"]

_WAIT_S = 0.25
_FIXED_BUDGET = 8
_USUAL = ["code_edit", "summarization", "qa"]


class _StoppedError(Exception):
    """The user stopped the benchmark."""


@dataclass(slots=True)
class _Progress:
    """What the computing thread tells the page."""

    done: int = 0
    total: int = 1
    rounds: list[Round] = field(default_factory=list)
    n_skipped: int = 0


class BenchTab:
    """The components of the tab and what they do."""

    def __init__(self, service: PageService) -> None:
        """Build the tab where the caller's layout stands."""
        self._service = service
        gr.HTML(
            "<p class='rl-hint'>Every prompt is answered plainly and with guesses, in turn, with "
            "temperature 0. Close other heavy programs for figures you can trust.</p>"
        )
        names = [(name.replace("_", " "), name) for name in CATEGORIES]
        categories = gr.CheckboxGroup(
            names, value=_USUAL, label="Kinds of text", elem_id="rl-bench-categories"
        )
        with gr.Row():
            count = gr.Slider(
                1,
                6,
                value=1,
                step=1,
                label="Prompts of each kind",
                elem_id="rl-bench-count",
                buttons=[],
            )
            tokens = gr.Slider(
                16,
                256,
                value=64,
                step=16,
                label="Longest answer",
                elem_id="rl-bench-tokens",
                buttons=[],
            )
        with gr.Row():
            self._go = gr.Button("Measure", variant="primary", elem_id="rl-bench-go")
            self._stop = gr.Button("Stop", variant="stop", visible=False, elem_id="rl-bench-stop")
        self._status = gr.HTML("", elem_id="rl-bench-status")
        self._plot = gr.HTML("", elem_id="rl-bench-plot")
        calm: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        self._go.click(
            self._measure,
            [categories, count, tokens],
            [self._status, self._plot, self._go, self._stop],
            concurrency_limit=None,
            **calm,
        )
        self._stop.click(self._end, None, None, queue=False, **calm)

    def _end(self, request: gr.Request) -> None:
        self._service.stop(f"{request.session_hash} bench")

    def _measure(
        self, categories: list[str], count: float, tokens: float, request: gr.Request
    ) -> Iterator[dict[Any, Any]]:
        yield {
            self._status: bar(0, "Starting …"),
            self._plot: "",
            self._go: gr.update(visible=False),
            self._stop: gr.update(visible=True),
        }
        try:
            with self._service.take_turn(f"{request.session_hash} bench") as turn:
                while not turn.wait(_WAIT_S):
                    yield {self._status: bar(0, f"Waiting for {turn.n_ahead} before you.")}
                yield from self._run(turn, categories, int(count), int(tokens))
        except Exception as error:  # noqa: BLE001  # the page shows it
            yield {self._status: note(explain(error), "error")}
        yield {self._go: gr.update(visible=True), self._stop: gr.update(visible=False)}

    def _run(
        self, turn: Turn, categories: list[str], count: int, tokens: int
    ) -> Iterator[dict[Any, Any]]:
        if not categories:
            raise ConfigError("no kind of text is chosen; tick at least one")
        facts = self._service.facts
        prompts = choose(categories, count)
        modes = self._modes()
        progress = _Progress()

        def measure(model: BenchModel) -> None:
            contestants = [ModeContestant(name, draft, model) for name, draft in modes.items()]
            race = Race(
                model, contestants, as_chat=facts.is_chat, max_tokens=tokens, n_ctx=facts.n_ctx
            )

            def on_answer(done: int, total: int) -> None:
                if turn.is_cancelled.is_set():
                    raise _StoppedError
                progress.done, progress.total = done, total
                progress.rounds = list(race.rounds)

            try:
                race.run(prompts, on_answer)
            except _StoppedError:
                pass
            finally:
                progress.rounds = list(race.rounds)
                progress.n_skipped = len(race.skipped)

        future = self._service.work(turn, measure)
        n_drawn = 0
        try:
            while not future.done():
                turn.is_cancelled.wait(_WAIT_S) if not turn.is_cancelled.is_set() else None
                shown = {self._status: _status(progress)}
                if len(progress.rounds) != n_drawn:
                    n_drawn = len(progress.rounds)
                    shown[self._plot] = bench_plot(summarize(progress.rounds, list(modes)))
                yield shown
            future.result()
        finally:
            if not future.done():
                turn.cancel()
                future.exception()
        yield {
            self._status: _summary(progress, is_stopped=turn.is_cancelled.is_set()),
            self._plot: bench_plot(summarize(progress.rounds, list(modes))),
        }

    def _modes(self) -> dict[str, DraftConfig]:
        most = self._service.facts.max_nodes
        if not most:
            raise ConfigError(
                "this model cannot take guesses back, so there is nothing to compare; load another"
            )
        return {
            BASE: DraftConfig(mode="off"),
            "auto": DraftConfig(budget=min(DraftConfig().budget, most)),
            f"racer {min(_FIXED_BUDGET, most)}": DraftConfig(
                mode="racer", budget=min(_FIXED_BUDGET, most)
            ),
        }


def _status(progress: _Progress) -> str:
    label = f"{progress.done} of {progress.total} answers" if progress.done else "Warming up …"
    return bar(progress.done / progress.total, label)


def _summary(progress: _Progress, *, is_stopped: bool) -> str:
    n_rounds = len(progress.rounds)
    if not n_rounds:
        return note(
            "Stopped before anything was complete." if is_stopped else "Nothing to measure."
        )
    text = f"{n_rounds} {'prompt' if n_rounds == 1 else 'prompts'} measured"
    if is_stopped:
        text = f"Stopped; {text} completely"
    if progress.n_skipped:
        text += f"; {progress.n_skipped} do not fit the context"
    return note(f"{text}.")
