"""The conversation: ask, stream, stop, retry, undo, edit, clear, export, import."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any

import gradio as gr

from racer_local.errors import ConfigError

from .answer import LiveAnswer
from .controls import Controls
from .conversation import Conversation, flatten, read_conversation, to_json, to_markdown
from .examples import EXAMPLES
from .live import LiveAnswers, mark, settled
from .panels import context_meter, note, speed_panel
from .service import Ask, PageService, explain
from .turns import Turn

__all__ = ["ChatTab"]

# A panel redrawn at every update would take time from the model.
_PANEL_EVERY = 3
_WAIT_S = 0.25
# Nor is the conversation shown anew more often than this where a page on the same cores follows
# the growing text by itself.
_SETTLE_S = 2.0
_SETTLE_PER_TOKEN_S = 0.002


class ChatTab:
    """The components of the tab and what they do.

    Attributes:
        last: the session's last answer, for the tree view.
        meter: the context meter.
    """

    def __init__(self, service: PageService, controls: Controls, live: LiveAnswers) -> None:
        """Build the tab where the caller's layout stands; ``live`` takes growing answers."""
        self._service = service
        self._controls = controls
        self._live = live
        # Sessions whose running answer is to leave no trace.
        self._dropped: set[str] = set()
        self.last = gr.State(None, time_to_live=3600)
        with gr.Row(elem_classes="rl-chat-row"):
            with gr.Column(scale=3, min_width=320):
                self.chat = gr.Chatbot(
                    label="Conversation",
                    show_label=False,
                    elem_id="rl-chat",
                    height="auto",
                    layout="bubble",
                    editable="user",
                    buttons=["copy", "copy_all"],
                    feedback_options=None,
                    allow_tags=False,
                    sanitize_html=True,
                    placeholder=_placeholder(service),
                    examples=[{"text": text, "display_text": name} for name, text in EXAMPLES],
                )
                self.growing = gr.HTML("", elem_id="rl-live")
                self.notice = gr.HTML("", elem_id="rl-notice")
                with gr.Row(elem_classes="rl-composer", equal_height=True):
                    self.box = gr.Textbox(
                        show_label=False,
                        label="Message",
                        placeholder="Ask something",
                        lines=1,
                        max_lines=8,
                        autofocus=True,
                        scale=8,
                        container=False,
                        elem_id="rl-box",
                    )
                    self.send = gr.Button(
                        "Send", variant="primary", scale=1, min_width=84, elem_id="rl-send"
                    )
                    self.stop = gr.Button(
                        "Stop",
                        variant="stop",
                        scale=1,
                        min_width=84,
                        visible=False,
                        elem_id="rl-stop",
                    )
                self.meter = gr.HTML(context_meter(0, service.facts.n_ctx), elem_id="rl-meter")
            with gr.Column(scale=2, min_width=300):
                gr.HTML("<h3 class='rl-title'>Where the speed comes from</h3>")
                self.panel = gr.HTML(speed_panel(None), elem_id="rl-panel")
        self._shown: list[Any] = [
            self.chat,
            self.panel,
            self.meter,
            self.notice,
            self.growing,
            self.send,
            self.stop,
            self.last,
            self.box,
        ]
        self._wire()

    def build_files(self) -> None:
        """Build export and import where the caller's layout stands."""
        with gr.Row():
            for name, kind in (("Export JSON", "json"), ("Export Markdown", "md")):
                button = gr.Button(name, size="sm", min_width=80, elem_id=f"rl-export-{kind}")
                button.click(
                    self._exporter(kind),
                    [self.chat, self._controls.system],
                    self._file,
                    queue=False,
                    show_progress="hidden",
                    api_visibility="private",
                ).success(
                    None,
                    self._file,
                    js=f"(text) => rlDownload(text, 'conversation.{kind}')",
                    api_visibility="private",
                )
        load = gr.Button("Import a conversation", size="sm", elem_id="rl-import")
        load.click(
            self._import,
            self._file,
            [*self._shown, self._controls.system],
            js="async () => await rlPick()",
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )

    def _wire(self) -> None:
        self._file = gr.Textbox(visible="hidden", elem_id="rl-file", label="File")
        calm: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        answer: dict[str, Any] = {
            "fn": self._answer,
            "inputs": [self.chat, *self._controls.inputs],
            "outputs": self._shown,
            "concurrency_limit": None,
            **calm,
        }
        quick: dict[str, Any] = {"queue": False, **calm}
        # What Gradio itself refuses must not leave the page waiting.
        idle: dict[str, Any] = {
            "fn": lambda: self._buttons(is_running=False),
            "outputs": [self.send, self.stop],
            **quick,
        }
        shown = self._shown
        for event in (self.send.click, self.box.submit):
            event(self._take, [self.box, self.chat], shown, **quick).success(**answer).failure(
                **idle
            )
        self.chat.example_select(self._take_example, self.chat, shown, **quick).success(
            **answer
        ).failure(**idle)
        self.chat.retry(self._retry, self.chat, shown, **quick).success(**answer).failure(**idle)
        self.chat.edit(self._edit, self.chat, shown, **quick).success(**answer).failure(**idle)
        self.chat.undo(self._undo, self.chat, shown, **quick)
        self.chat.clear(self._clear, None, shown, **quick)
        self.stop.click(self._stop, None, None, **quick)

    # --- before an answer -----------------------------------------------------------------

    def _take(self, text: str, history: Any) -> dict[Any, Any]:
        messages = flatten(history)
        if not text or not text.strip():
            return self._asking(messages) if _is_open(messages) else {self.notice: ""}
        if _is_open(messages):
            # The question before got no answer: this one takes its place.
            messages.pop()
        return {**self._asking([*messages, {"role": "user", "content": text}]), self.box: ""}

    def _take_example(self, history: Any, event: gr.SelectData) -> dict[Any, Any]:
        return self._take(event.value["text"], history)

    def _retry(self, history: Any, event: gr.RetryData) -> dict[Any, Any]:
        return self._asking(flatten(history)[: _index(event) + 1])

    def _edit(self, history: Any, event: gr.EditData) -> dict[Any, Any]:
        kept = flatten(history)[: _index(event)]
        return self._asking([*kept, {"role": "user", "content": str(event.value)}])

    def _undo(self, history: Any, event: gr.UndoData, request: gr.Request) -> dict[Any, Any]:
        self._drop(str(request.session_hash))
        messages = flatten(history)
        taken_back = messages[_index(event)]["content"] if _index(event) < len(messages) else ""
        return {
            self.chat: messages[: _index(event)],
            self.box: taken_back,
            self.notice: "",
            **self._buttons(is_running=False),
        }

    def _clear(self, request: gr.Request) -> dict[Any, Any]:
        self._drop(str(request.session_hash))
        return {
            self.chat: [],
            self.panel: speed_panel(None),
            self.meter: context_meter(0, self._service.facts.n_ctx),
            self.notice: "",
            self.last: None,
            **self._buttons(is_running=False),
        }

    def _drop(self, session: str) -> None:
        self._dropped.add(session)
        self._service.stop(session)

    def _stop(self, request: gr.Request) -> None:
        self._service.stop(str(request.session_hash))

    def _asking(self, messages: list[dict[str, str]]) -> dict[Any, Any]:
        return {self.chat: messages, self.notice: "", **self._buttons(is_running=True)}

    def _buttons(self, *, is_running: bool) -> dict[Any, Any]:
        return {
            self.send: gr.update(visible=not is_running),
            self.stop: gr.update(visible=is_running),
        }

    # --- the answer -----------------------------------------------------------------------

    def _answer(self, request: gr.Request, history: Any, *values: Any) -> Iterator[dict[Any, Any]]:
        messages = flatten(history)
        session = str(request.session_hash)
        self._dropped.discard(session)
        idle = self._buttons(is_running=False)
        if not _is_open(messages):
            yield idle
            return
        try:
            ask = self._controls.ask(messages, values)
            with self._service.take_turn(session) as turn:
                while not turn.wait(_WAIT_S):
                    yield {self.notice: note(turn.waits_for)}
                if turn.is_cancelled.is_set():
                    yield {self.notice: note("Stopped before it began."), **idle}
                    return
                yield {self.notice: "", **self._buttons(is_running=True)}
                answer = yield from self._grow(messages, ask, turn)
            if session in self._dropped:
                self._dropped.discard(session)
                yield {self.growing: "", self.notice: "", **idle}
                return
            yield {**self._finished(messages, answer), **idle}
        except Exception as error:  # noqa: BLE001  # the page shows it
            yield {self.notice: note(explain(error), "error"), self.growing: "", **idle}

    def _grow(
        self, messages: list[dict[str, str]], ask: Ask, turn: Turn
    ) -> Generator[dict[Any, Any], None, LiveAnswer]:
        """Yield what changes while an answer is written; return it complete."""
        name, shown, shown_s = "", "", 0.0
        try:
            for number, answer in enumerate(self._service.answer(ask, turn)):
                if answer.done.is_set():
                    break
                if not name and not self._service.has_spare_cores:
                    name = self._live.open(answer)
                    yield {self.growing: mark(name, ""), self.panel: speed_panel(answer)}
                text = answer.text
                if turn.is_cancelled.is_set():
                    continue
                if not text:
                    yield {self.notice: note(_reading(answer))}
                    continue
                now_s = time.monotonic()
                if name and (self._live.is_followed(name) or not shown_s):
                    pause_s = _SETTLE_S + len(answer.pieces) * _SETTLE_PER_TOKEN_S
                    text = settled(text) if now_s - shown_s >= pause_s else shown
                if text == shown and shown_s:
                    continue
                said = [{"role": "assistant", "content": text}] if text else []
                update = {self.chat: [*messages, *said], self.notice: ""}
                if name:
                    update[self.growing] = mark(name, text)
                if name or number % _PANEL_EVERY == 0:
                    update[self.panel] = speed_panel(answer)
                shown, shown_s = text, now_s
                yield update
        finally:
            self._live.close(name)
        return answer

    def _finished(self, messages: list[dict[str, str]], answer: LiveAnswer) -> dict[Any, Any]:
        text, facts = answer.text, self._service.facts
        if answer.error:
            notice = note(answer.error, "error")
        elif answer.finish_reason == "length" and answer.n_tokens >= facts.n_ctx:
            notice = note(f"The context of {facts.n_ctx:,} tokens is full.", "error")
        elif not text.strip() and answer.finish_reason != "cancelled":
            notice = note("The model had nothing to say: it ended its answer at once.")
        else:
            notice = ""
        said = [{"role": "assistant", "content": text}] if text.strip() else []
        return {
            self.chat: [*messages, *said],
            self.panel: speed_panel(answer),
            self.meter: context_meter(answer.n_tokens, facts.n_ctx),
            self.notice: notice,
            self.growing: "",
            self.last: answer,
        }

    # --- files ----------------------------------------------------------------------------

    def _exporter(self, kind: str) -> Any:
        write = to_json if kind == "json" else to_markdown

        def export(history: Any, system: str) -> str:
            messages = flatten(history)
            if not messages:
                raise gr.Error("There is nothing to export yet.", print_exception=False)
            return write(Conversation(messages, system or "", self._service.facts.name))

        return export

    def _import(self, text: str | None) -> dict[Any, Any]:
        if not text:
            return {self.notice: ""}
        try:
            conversation = read_conversation(text)
        except ConfigError as error:
            return {self.notice: note(str(error), "error")}
        n_messages = len(conversation.messages)
        return {
            self.chat: conversation.messages,
            self.panel: speed_panel(None),
            self.last: None,
            self.notice: note(f"Imported {n_messages} messages."),
            self._controls.system: conversation.system,
        }


def _is_open(messages: list[dict[str, str]]) -> bool:
    """Tell whether the last word is a question."""
    return bool(messages) and messages[-1]["role"] == "user"


def _reading(answer: LiveAnswer) -> str:
    n_done, n_all = answer.prefill
    return f"Reading the prompt: {n_done:,} of {n_all:,} tokens …" if n_all else "Thinking …"


def _index(event: Any) -> int:
    index = event.index
    return int(index[0]) if isinstance(index, (list, tuple)) else int(index)


def _placeholder(service: PageService) -> str:
    kind = (
        ""
        if service.facts.is_chat
        else ("\n\n*This is a base model without a chat template: it goes on with your text.*")
    )
    return (
        "## Ask something\nRACER guesses the next words, the model checks them all at once and "
        f"keeps only what it would have said itself: the same answer, sooner.{kind}"
    )
