"""Where a chat's entries come from: a terminal with line editing, or a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from racer_local.chat.entry import entries, is_unfinished
from racer_local.cli.interrupts import Interrupts
from racer_local.errors import ConfigError

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

__all__ = ["EntryReader", "PipeReader", "TerminalReader"]


class EntryReader(Protocol):
    """Gives one entry after the other."""

    def read(self) -> str:
        """Return the next entry; EOFError at the end, KeyboardInterrupt for Ctrl-C."""


class PipeReader:
    """Reads a line as an entry, or several between triple quotes."""

    def __init__(self, interrupts: Interrupts) -> None:
        """Read from stdin; ``interrupts`` may end the waiting for a line."""
        self._entries = entries(_lines())
        self._interrupts = interrupts

    def read(self) -> str:
        """Return the next entry that is not empty."""
        with self._interrupts.raising():
            for entry in self._entries:
                if entry.strip():
                    return entry
        raise EOFError


def _lines() -> Iterator[str]:
    for number, encoded in enumerate(sys.stdin.buffer, start=1):
        try:
            yield encoded.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"line {number} of standard input is not valid UTF-8 (byte "
                f"0x{encoded[error.start]:02x}); convert it, for example with iconv"
            ) from None


class TerminalReader:
    """Reads with line editing and history; Enter sends, Alt-Enter makes a new line.

    A paste of several lines stays one entry.
    """

    def __init__(
        self, interrupts: Interrupts, commands: Sequence[str], history: Path | None = None
    ) -> None:
        """Prepare the terminal.

        Args:
            interrupts: Ctrl-C pressed before the terminal hands it on as a key.
            commands: names to complete after a slash.
            history: file that keeps what was typed; None keeps it until the chat ends.

        Raises:
            ConfigError: the history file cannot be used.
        """
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.output import create_output

        self._interrupts = interrupts
        if history is not None:
            _make_private(history)
        names = [f"/{name}" for name in commands]
        self._session: PromptSession[str] = PromptSession(
            history=InMemoryHistory() if history is None else FileHistory(str(history)),
            key_bindings=_key_bindings(),
            completer=WordCompleter(names, sentence=True),
            complete_while_typing=False,
            enable_open_in_editor=True,
            multiline=True,
            # Room below the prompt, for a menu of completions, would scroll the answer away.
            reserve_space_for_menu=0,
            # The question is no answer: where stdout is a file, it goes to stderr.
            output=create_output(always_prefer_tty=True),
        )

    def read(self) -> str:
        """Return the next entry."""
        return self._session.prompt(
            "> ", prompt_continuation=_continuation, pre_run=self._heed_earlier_interrupt
        )

    def _heed_earlier_interrupt(self) -> None:
        if self._interrupts.take():
            self._session.app.exit(exception=KeyboardInterrupt())


def _continuation(width: int, line_number: int, is_soft_wrap: int) -> str:
    return "" if is_soft_wrap else ". ".rjust(width)


def _key_bindings() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_unfinished(buffer.text):
            buffer.newline()
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    @bindings.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    return bindings


def _make_private(path: Path) -> None:
    # What was typed is as private as a chat.
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"the history file {str(path)!r} cannot be used: {reason}") from error
    with contextlib.suppress(OSError):
        os.chmod(path, 0o600)
