"""The chat itself: ask, stream the answer, tell what it cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from racer_local.chat.conversation import Conversation, answer_room
from racer_local.chat.entry import Entry, parse_entry
from racer_local.chat.reasoning import ReasoningScanner
from racer_local.chat.settings import ChatSettings
from racer_local.cli.books import remember
from racer_local.cli.chat_input import EntryReader
from racer_local.cli.chat_model import ChatModel
from racer_local.cli.chat_screen import Screen
from racer_local.cli.interrupts import Interrupts
from racer_local.cli.progress import Progress
from racer_local.errors import RacerError

if TYPE_CHECKING:
    from racer_local.decoding.answer import Answer
    from racer_local.speculation.stats import Stats

__all__ = ["Chat"]

_INTERRUPTED = 130
# Commands during which Ctrl-C stops an answer.
_ANSWERING = frozenset({"regen"})


class Chat:
    """A conversation at a terminal or through a pipe.

    Attributes:
        conversation: the turns so far.
        settings: how answers are chosen.
        model: what answers.
        screen: where it is shown.
        shows_stats: whether a line of figures follows each answer.
        last_stats: figures of the last answer, or None.
        last_origins: files that its accepted drafts came from, and how many tokens each.
        is_kept: whether the conversation is remembered on this machine when it ends.
        is_leaving: whether the chat ends before the next entry.
    """

    def __init__(
        self,
        model: ChatModel,
        settings: ChatSettings,
        screen: Screen,
        interrupts: Interrupts,
        conversation: Conversation,
        run_command: Callable[[Chat, Entry], None],
        *,
        is_interactive: bool,
        is_kept: bool = False,
    ) -> None:
        """Put the parts together.

        ``is_interactive`` says that somebody is there to see an error and go on, ``is_kept`` that
        what is said is to be remembered.
        """
        self.conversation = conversation
        self.settings = settings
        self.model = model
        self.screen = screen
        self.shows_stats = True
        self.last_stats: Stats | None = None
        self.last_origins: list[tuple[str, int]] = []
        self.is_kept = is_kept
        self.n_used = 0
        self.is_leaving = False
        self.exit_code = 0
        self._interrupts = interrupts
        self._run_command = run_command
        self._is_interactive = is_interactive
        self._is_armed = False
        # The conversation as the model read and wrote it, as far as it is not remembered yet.
        self._said: list[int] = []

    def run(self, reader: EntryReader) -> int:
        """Go on until the user leaves; return the exit code."""
        try:
            code = self._converse(reader)
        finally:
            is_well = self._keep_at_end()
        return code if is_well else code or 1

    def _converse(self, reader: EntryReader) -> int:
        while not self.is_leaving:
            try:
                text = reader.read()
                self._is_armed = False
                self._do(parse_entry(text))
            except EOFError:
                break
            except RacerError as error:
                self.screen.note(f"error: {' '.join(str(error).split())}")
                self.exit_code = 0 if self._is_interactive else 1
            except KeyboardInterrupt:
                if self._is_armed or not self._is_interactive or self._interrupts.take() > 1:
                    return _INTERRUPTED
                self._is_armed = True
                self.screen.end_answer()
                self.screen.note("Ctrl-C again, Ctrl-D or /bye leaves")
        return self.exit_code

    def keep(self) -> None:
        """Remember what was said so far, if that is wished; once.

        Raises:
            ConfigError: it cannot be kept.
        """
        said, self._said = self._said, []
        if said and self.is_kept:
            remember(self.model.session, said, self.screen.note)

    def _keep_at_end(self) -> bool:
        try:
            self.keep()
        except RacerError as error:
            self.screen.note(f"error: {error}")
            return False
        return True

    def _do(self, entry: Entry) -> None:
        if entry.command in _ANSWERING:
            self._run_command(self, entry)
        elif entry.command:
            with self._interrupts.raising():
                self._run_command(self, entry)
        elif entry.text.strip():
            self.ask(entry.text)

    def ask(self, text: str) -> None:
        """Ask, and show the answer.

        Raises:
            RacerError: there is none; the question is taken back.
        """
        self.conversation.ask(text)
        self._answer()

    def ask_again(self) -> None:
        """Answer the last question once more; where that fails, the old answer stays."""
        old = self.conversation.reopen()
        n_turns = len(self.conversation.turns)
        try:
            self._answer()
        finally:
            if len(self.conversation.turns) < n_turns:
                self.conversation.turns.append(old)

    def _answer(self) -> None:
        text = ""
        try:
            with self._interrupts.stopping(self.model.session.cancel):
                room = answer_room(self.model.n_ctx, self.settings.limits.max_tokens)
                fitted = self.model.fit(self.conversation, room)
                if fitted.n_dropped:
                    # What follows has the oldest turns no longer.
                    self.keep()
                    turns = "turn" if fitted.n_dropped == 1 else f"{fitted.n_dropped} turns"
                    self.screen.note(
                        f"note: the context is full; the oldest {turns} will no longer be read"
                    )
                with Progress("reading the prompt", unit="tokens") as progress:
                    answer = self._stream(fitted.tokens, progress)
                    scanner = ReasoningScanner(self.model.end_of(fitted.tokens))
                    try:
                        self._show(answer, scanner, progress)
                    finally:
                        text = answer.text
        finally:
            # A partial answer stays, whatever ended it.
            self.conversation.answer(text)
        if answer.tokens:
            self._said = [*fitted.tokens, *answer.tokens]
        self._tell(answer, len(fitted.tokens))
        n_pressed = self._interrupts.take()
        if n_pressed:
            self._is_armed = True
            self.is_leaving = n_pressed > 1 or not self._is_interactive
            self.exit_code = _INTERRUPTED if self.is_leaving else self.exit_code

    def _stream(self, tokens: list[int], progress: Progress) -> Answer:
        cancel, interrupts = self.model.session.cancel, self._interrupts

        def on_prefill(done: int, total: int) -> None:
            # Pressed before there was anything to stop.
            if interrupts.count:
                cancel()
            progress.show(done, total)

        return self.model.stream(tokens, self.settings, on_prefill)

    def _show(self, answer: Answer, scanner: ReasoningScanner, progress: Progress) -> None:
        try:
            for event in answer:
                progress.clear()
                source = answer.sources[-1] if event.token is not None else None
                for piece, is_reasoning in scanner.push(event.text):
                    self.screen.write(piece, source, is_reasoning=is_reasoning)
                if self._interrupts.count:
                    answer.cancel()
            for piece, is_reasoning in scanner.flush():
                self.screen.write(piece, is_reasoning=is_reasoning)
        finally:
            self.screen.end_answer()

    def _tell(self, answer: Answer, n_prompt: int) -> None:
        stats = self.last_stats = answer.stats
        self.n_used = n_prompt + stats.n_generated
        self.last_origins = self.model.session.drafted_from(answer)
        for notice in stats.notices:
            self.screen.note(f"note: {notice}")
        if answer.finish_reason == "cancelled":
            kept = "what there is of it stays" if answer.text else "the question is taken back"
            self.screen.note(f"stopped; {kept}")
        elif answer.finish_reason == "length" and self.n_used >= self.model.n_ctx - 1:
            self.screen.note(
                "note: the answer was cut because the context is full; /clear starts anew, "
                "--ctx makes more room"
            )
        if self.shows_stats:
            self.screen.stats(f"{stats.line()} · {self.context_meter()}")

    def context_meter(self) -> str:
        """Say how full the context is."""
        n_ctx = self.model.n_ctx
        return f"context {self.n_used:,} of {n_ctx:,} ({self.n_used / n_ctx:.0%})".replace(
            "%)", " %)"
        )
