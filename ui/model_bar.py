"""Choose and load a model."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

import gradio as gr

from racer_local.models.store import resolve_model

from .controls import Controls
from .facts import PageFacts
from .model_list import model_choices
from .panels import bar, context_meter, note
from .service import PageService, explain

__all__ = ["ModelBar", "header"]

_WAIT_S = 0.25


def header(facts: PageFacts) -> str:
    """Say what this page is and which model answers."""
    kind = facts.kind if facts.is_chat else f"{facts.kind} · base model"
    kind += " · exact" if facts.is_exact else ""
    return (
        '<header class="rl-head"><div><h1>racer<span>_</span>local</h1>'
        "<p>Guesses cheaply, checks exactly: the model's own answer, sooner.</p></div>"
        f'<div class="rl-chip" title="The model that answers"><b>{escape(facts.name)}</b>'
        f"<span>{escape(kind)}</span></div></header>"
    )


class ModelBar:
    """The model picker."""

    def __init__(self, service: PageService) -> None:
        """Build the picker where the caller's layout stands."""
        self._service = service
        self.choice = gr.Dropdown(
            model_choices(),
            value=service.facts.name,
            label="Model",
            allow_custom_value=True,
            interactive=not service.is_shared,
            elem_id="rl-model",
        )
        self.load = gr.Button(
            "Load model", size="sm", visible=not service.is_shared, elem_id="rl-load"
        )
        self.status = gr.HTML(_notices(service.facts), elem_id="rl-model-status")

    def wire(self, controls: Controls, head: Any, meter: Any) -> None:
        """Connect the button.

        Args:
            controls: are fitted to the model.
            head: the page's header.
            meter: the context meter.
        """
        if self._service.is_shared:
            return
        self._controls, self._head, self._meter = controls, head, meter
        changed = [head, meter, self.choice, self.status, self.load]
        fitted = [controls.budget, controls.mode, controls.exact, controls.remember]
        calm: dict[str, Any] = {
            "outputs": [*changed, *fitted],
            "concurrency_limit": None,
            "show_progress": "hidden",
            "api_visibility": "private",
        }
        self.load.click(self._load, self.choice, **calm)
        controls.exact.input(self._set_exact, controls.exact, **calm)
        controls.remember.input(self._set_remember, controls.remember, **calm)

    def _load(self, choice: str | None, request: gr.Request) -> Iterator[dict[Any, Any]]:
        # Gradio has to see a generator function, not a function that returns a generator.
        yield from self._change(request, lambda tell: self._take(choice, tell), choice)

    def _set_exact(self, is_exact: bool, request: gr.Request) -> Iterator[dict[Any, Any]]:
        def reopen(tell: Callable[[float, str], None]) -> None:
            self._service.load(lambda share: tell(share, _loading(share)), is_exact=is_exact)

        yield from self._change(request, reopen)

    def _set_remember(self, remembers: bool, request: gr.Request) -> Iterator[dict[Any, Any]]:
        def reopen(tell: Callable[[float, str], None]) -> None:
            self._service.load(lambda share: tell(share, _loading(share)), remembers=remembers)

        yield from self._change(request, reopen)

    def _change(
        self,
        request: gr.Request,
        work: Callable[[Callable[[float, str], None]], None],
        choice: str | None = None,
    ) -> Iterator[dict[Any, Any]]:
        yield {self.status: bar(0, "Waiting …"), self.load: gr.update(interactive=False)}
        done = {self.load: gr.update(interactive=True)}
        try:
            with self._service.take_turn(f"{request.session_hash} load") as turn:
                while not turn.wait(_WAIT_S):
                    yield {self.status: bar(0, f"Waiting for {turn.n_ahead} before you.")}
                for share, label in _with_progress(work):
                    yield {self.status: bar(share, label)}
        except Exception as error:  # noqa: BLE001  # the page shows it
            # The controls say what is in use.
            facts = self._service.facts
            yield {
                self.status: note(explain(error), "error"),
                self.choice: facts.name,
                self._controls.exact: facts.is_exact,
                self._controls.remember: facts.remembers,
                **done,
            }
            return
        facts = self._service.facts
        if choice is not None:
            # Another model counts in other tokens.
            yield {self._meter: context_meter(0, facts.n_ctx)}
        yield {
            self._head: header(facts),
            # The name that was asked for: of other programs' models, the file's says nothing.
            self.choice: gr.update(choices=model_choices(), value=choice or facts.name),
            self.status: note("Loaded.") + _notices(facts),
            **self._controls.limits_for(facts),
            **done,
        }

    def _take(self, choice: str | None, tell: Callable[[float, str], None]) -> None:
        path = resolve_model(
            choice,
            lambda n_done, n_all: tell(n_done / max(1, n_all), f"Fetching: {n_done / 1e6:.0f} MB"),
        )
        self._service.load(lambda share: tell(share, _loading(share)), path=path)


def _loading(share: float) -> str:
    return f"Loading: {share:.0%}"


def _notices(facts: PageFacts) -> str:
    texts = list(facts.notices)
    if not facts.is_chat:
        texts.append("A base model without a chat template: it goes on with your text.")
    return "".join(note(text) for text in texts)


def _with_progress(
    work: Callable[[Callable[[float, str], None]], None],
) -> Iterator[tuple[float, str]]:
    """Run ``work`` on a thread of its own and yield what it tells, at most ten times a second."""
    told: queue.SimpleQueue[tuple[float, str]] = queue.SimpleQueue()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work(lambda share, label: told.put((share, label)))
        except BaseException as error:  # noqa: BLE001  # raised again below
            failed.append(error)

    thread = threading.Thread(target=run, name="racer-local-load")
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        last = None
        while not told.empty():
            last = told.get()
        if last is not None:
            yield last
    if failed:
        raise failed[0]
