"""The slash commands of a chat. A new one is a function here and a line in ``COMMANDS``."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast, get_args

import click

from racer_local.books.store import unused_notices
from racer_local.chat.entry import Entry
from racer_local.chat.saved import chat_path, load_chat, save_chat
from racer_local.cli.books import source_lines
from racer_local.cli.chat_loop import Chat
from racer_local.cli.chat_screen import COLORS
from racer_local.config import DraftMode
from racer_local.errors import ConfigError
from racer_local.wording import counted, quoted

__all__ = ["COMMANDS", "run_command"]


@dataclass(frozen=True, slots=True)
class _Command:
    run: Callable[[Chat, str], None]
    arguments: str
    help: str


def _help(chat: Chat, text: str) -> None:
    rows = [(f"/{name} {c.arguments}".rstrip(), c.help) for name, c in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    lines = [f"  {usage:<{width}}  {explained}" for usage, explained in rows]
    keys = (
        'Enter sends, Alt-Enter makes a new line, """ opens and closes a text of several lines.\n'
        "Ctrl-C stops the answer, a second one leaves, and so does Ctrl-D."
    )
    chat.screen.note("\n".join([*lines, keys]))


def _clear(chat: Chat, text: str) -> None:
    chat.keep()
    chat.conversation.clear()
    chat.n_used = 0
    chat.screen.note("cleared; the system message stays")


def _regen(chat: Chat, text: str) -> None:
    chat.ask_again()


def _set(chat: Chat, text: str) -> None:
    if not text.strip():
        chat.screen.note("\n".join(f"  {name} {value}" for name, value in chat.settings.describe()))
        return
    name, _, value = text.strip().partition(" ")
    if not value.strip():
        raise ConfigError(f"give a value: /set {name} VALUE")
    chat.settings = chat.settings.changed(name, value.strip())
    shown = dict(chat.settings.describe())
    name = next((known for known in shown if known.startswith(name.lower())), name)
    chat.screen.note(f"{name} is {shown.get(name, value.strip())}")


def _system(chat: Chat, text: str) -> None:
    if not text.strip():
        system = chat.conversation.system
        chat.screen.note("there is no system message" if system is None else system)
        return
    is_none = text.strip() == "none"
    chat.conversation.system = None if is_none else text.strip()
    chat.screen.note("the system message is gone" if is_none else "the system message is set")


def _save(chat: Chat, text: str) -> None:
    path = chat_path(text)
    save_chat(path, chat.conversation, chat.model.name)
    chat.screen.note(f"saved {_turns(chat)} in {path}")


def _load(chat: Chat, text: str) -> None:
    saved = load_chat(chat_path(text))
    chat.keep()
    chat.conversation = saved.conversation
    chat.n_used = 0
    held = f", held with {saved.model}" if saved.model else ""
    chat.screen.note(f"loaded {_turns(chat)}{held}")


def _turns(chat: Chat) -> str:
    return counted(len(chat.conversation.turns), "turn")


def _model(chat: Chat, text: str) -> None:
    if text.strip():
        # The next model's tokens are others.
        chat.keep()
        chat.model.switch(text.strip())
        for notice in chat.model.session.notices:
            chat.screen.note(f"note: {notice}")
    header = chat.model.session.model.header
    chat.screen.note(f"{chat.model.name}, context {chat.model.n_ctx:,}, {header.path}")


def _stats(chat: Chat, text: str) -> None:
    choice = text.strip().lower()
    if choice in ("on", "off"):
        chat.shows_stats = choice == "on"
        chat.screen.note(f"figures after each answer: {choice}")
        return
    if choice:
        raise ConfigError("/stats takes on or off, or nothing to show the figures")
    stats = chat.last_stats
    if stats is None:
        raise ConfigError("there are no figures before the first answer")
    reused = f"prompt {stats.n_prompt} tokens, of which {stats.n_reused} were still in the cache"
    sources = "\n".join(source_lines(stats, chat.last_origins)) or "nothing was drafted"
    chat.screen.note(
        f"{stats.line()}\n{reused}\nanswer {stats.n_generated} tokens in {stats.n_steps} steps, "
        f"draft {stats.draft}, seed {stats.seed}\n{sources}\n"
        f"{chat.context_meter()}, {_turns(chat)}, {chat.conversation.n_dropped} no longer read"
    )


def _draft(chat: Chat, text: str) -> None:
    words = text.split()
    if len(words) > 2:
        raise ConfigError("/draft takes a mode and a budget")
    if words:
        mode = words[0].lower()
        if mode not in get_args(DraftMode):
            raise ConfigError(f"draft mode {quoted(mode)}; take {', '.join(get_args(DraftMode))}")
        draft = replace(chat.model.draft, mode=cast(DraftMode, mode))
        if len(words) == 2:
            try:
                draft = replace(draft, budget=int(words[1]))
            except ValueError as error:
                raise ConfigError(f"{error}"[:200]) from None
        chat.model.use(draft)
    now = chat.model.draft
    for notice in unused_notices(chat.model.session.books, now.mode):
        chat.screen.note(f"note: {notice}")
    chat.screen.note(f"draft {now.mode}" + (f", budget {now.budget}" if now.mode != "off" else ""))


def _exact(chat: Chat, text: str) -> None:
    choice = text.strip().lower()
    if choice not in ("", "on", "off"):
        raise ConfigError("/exact takes on or off")
    if choice:
        chat.model.set_exact(choice == "on")
    is_on = chat.model.is_exact
    meaning = "the very tokens of plain decoding" if is_on else "near-ties may fall the other way"
    chat.screen.note(f"exact is {'on' if is_on else 'off'}: {meaning}")


def _remember(chat: Chat, text: str) -> None:
    choice = text.strip().lower()
    if choice not in ("", "on", "off"):
        raise ConfigError("/remember takes on or off")
    if choice:
        chat.is_kept = choice == "on"
    if chat.is_kept:
        chat.screen.note(chat.model.memory_notice())
    else:
        chat.screen.note("this chat is not kept when it ends")


def _colors(chat: Chat, text: str) -> None:
    choice = text.strip().lower()
    if choice not in ("", "on", "off"):
        raise ConfigError("/colors takes on or off")
    if choice:
        if choice == "on" and not chat.screen.is_terminal:
            raise ConfigError("colours need a terminal")
        chat.screen.has_colors = choice == "on"
    is_on = chat.screen.has_colors
    legend = ", ".join(
        click.style(source.name.lower(), fg=color) if is_on else source.name.lower()
        for source, color in COLORS.items()
    )
    click.echo(f"colours are {'on' if is_on else 'off'}; drafted by: {legend}", err=True)


def _bye(chat: Chat, text: str) -> None:
    chat.is_leaving = True


COMMANDS = {
    "help": _Command(_help, "", "this list"),
    "clear": _Command(_clear, "", "forget the turns, keep the system message"),
    "regen": _Command(_regen, "", "answer the last question again"),
    "set": _Command(_set, "[NAME VALUE]", "show the settings, or change one, as in /set temp 0"),
    "system": _Command(_system, "[TEXT]", "show or set the system message; none removes it"),
    "save": _Command(_save, "NAME", "save the chat under a name or a path"),
    "load": _Command(_load, "NAME", "go on with a saved chat"),
    "model": _Command(_model, "[NAME]", "show the model, or go on with another"),
    "stats": _Command(_stats, "[on|off]", "figures of the last answer; a line after each, or none"),
    "draft": _Command(_draft, "[MODE [N]]", "show or set how to draft, with a budget of N"),
    "exact": _Command(
        _exact, "[on|off]", "the very tokens of plain decoding; opens the model anew"
    ),
    "remember": _Command(
        _remember, "[on|off]", "keep this chat on this machine when it ends; says where"
    ),
    "colors": _Command(_colors, "[on|off]", "colour tokens by who drafted them"),
    "bye": _Command(_bye, "", "leave"),
}
_ALIASES = {"?": "help", "exit": "bye", "quit": "bye", "colours": "colors"}


def run_command(chat: Chat, entry: Entry) -> None:
    """Run a slash command.

    Raises:
        RacerError: there is no such command, or it failed.
    """
    name = _ALIASES.get(entry.command, entry.command)
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        advice = f"did you mean /{near[0]}?" if near else "/help lists them"
        raise ConfigError(
            f"there is no command /{entry.command}; {advice} (a text that begins with a slash "
            'goes between """)'
        )
    command.run(chat, entry.text)
