"""``racer-local chat``: talk to a model in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from racer_local.cli.books import check_books
from racer_local.cli.options import (
    book_options,
    draft_config,
    draft_options,
    generation_config,
    model_options,
    sampling_config,
    sampling_options,
)

__all__ = ["command"]


@click.command("chat")
@model_options
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--load", "saved", metavar="NAME", help="Go on with a chat saved with /save.")
@click.option(
    "--history",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep what is typed in FILE, for the arrow keys.  [default: forgotten at the end]",
)
@draft_options
@book_options
@sampling_options
@click.option("--debug", is_flag=True, help="Show a traceback if something fails.")
def command(**options: Any) -> int:
    """Talk to a model. Enter sends, /help lists the commands, Ctrl-D leaves.

    \b
    Examples:
      racer-local chat
      racer-local chat --model path/to/model.gguf --system "Answer in one sentence."
      racer-local chat --book myproject --remember
      printf 'Name a colour.\\nAnother one.\\n' | racer-local chat --temp 0 > answers.txt

    Ctrl-C stops the answer, a second one leaves. Piped lines are questions, one each, or several
    between triple quotes; the answers go to stdout and everything else to stderr.
    """
    from racer_local.chat.conversation import Conversation
    from racer_local.chat.saved import chat_path, load_chat
    from racer_local.chat.settings import ChatSettings
    from racer_local.cli.chat_commands import COMMANDS, run_command
    from racer_local.cli.chat_input import EntryReader, PipeReader, TerminalReader
    from racer_local.cli.chat_loop import Chat
    from racer_local.cli.chat_model import ChatModel
    from racer_local.cli.chat_screen import Screen
    from racer_local.cli.interrupts import Interrupts

    settings = ChatSettings(sampling_config(options), generation_config(options))
    draft = draft_config(options)
    check_books(options, draft)
    conversation = Conversation()
    if options["saved"] is not None:
        conversation = load_chat(chat_path(options["saved"])).conversation
    if options["system"] is not None:
        conversation.system = options["system"]
    is_interactive = sys.stdin.isatty()
    interrupts = Interrupts()
    reader: EntryReader = PipeReader(interrupts)
    if is_interactive:
        reader = TerminalReader(interrupts, list(COMMANDS), options["history"])
    screen = Screen()
    with ChatModel(options, draft) as model:
        for notice in model.session.notices:
            screen.note(f"note: {notice}")
        if is_interactive:
            screen.note(
                f"{model.name}, context {model.n_ctx:,} · /help lists the commands, Ctrl-D leaves"
            )
        if options["remember"]:
            screen.note(f"note: {model.memory_notice()}")
        chat = Chat(
            model,
            settings,
            screen,
            interrupts,
            conversation,
            run_command,
            is_interactive=is_interactive,
            is_kept=options["remember"],
        )
        with interrupts:
            return chat.run(reader)
