"""``racer-local generate``: one answer, streaming to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from racer_local.cli.books import book_arguments, check_books, remember, source_lines
from racer_local.cli.opening import open_session
from racer_local.cli.options import (
    book_options,
    draft_config,
    draft_options,
    generation_config,
    model_config,
    model_options,
    sampling_config,
    sampling_options,
)
from racer_local.cli.progress import Progress
from racer_local.config import DraftConfig, GenerationConfig, SamplingConfig
from racer_local.errors import ConfigError

if TYPE_CHECKING:
    from racer_local.decoding.answer import Answer
    from racer_local.decoding.session import Session

__all__ = ["command"]


@click.command("generate")
@click.argument("prompt", required=False)
@click.option(
    "--chat/--raw",
    "as_chat",
    default=None,
    help="Ask through the model's chat template, or continue the text as it is.  "
    "[default: chat where the model has a template]",
)
@click.option("--system", help="System message of the chat.")
@model_options
@draft_options
@book_options
@sampling_options
@click.option("--stats", is_flag=True, help="Say more: drafts by source, and the files they quote.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option("--compare", is_flag=True, help="Answer again without drafting; compare speeds.")
@click.option("--debug", is_flag=True, help="Show a traceback if something fails.")
def command(prompt: str | None, **options: Any) -> int:
    """Answer one prompt, streaming to stdout. Statistics go to stderr.

    PROMPT is the question; '-' or nothing reads it from standard input.

    \b
    Examples:
      racer-local generate "Why is the sky blue?"
      racer-local generate --raw "def fibonacci(n):" --temp 0 -n 100
      cat notes.txt | racer-local generate -
    """
    sampling = sampling_config(options)
    limits = generation_config(options)
    draft = draft_config(options)
    check_books(options, draft)
    text = _read_prompt(prompt)
    config = model_config(options, draft)
    with open_session(config, draft, **book_arguments(options)) as session:
        for notice in session.notices:
            click.echo(f"note: {notice}", err=True)
        tokens = _prompt_tokens(session, text, options)
        ask = partial(_answer, session, tokens, limits=limits)
        answer = ask(sampling, show=not options["as_json"])
        compared = _compare(session, ask, sampling, answer) if options["compare"] else None
        origins = session.drafted_from(answer) if session.books.books else []
        _report(answer, compared, origins, as_json=options["as_json"], more=options["stats"])
        if options["remember"]:
            said = [*tokens, *answer.tokens]
            remember(session, said, lambda line: click.echo(line, err=True))
    return 0


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        text = prompt
    elif prompt is None and sys.stdin.isatty():
        raise click.UsageError("give a prompt, or '-' to read it from standard input")
    else:
        encoded = sys.stdin.buffer.read()
        try:
            text = encoded.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"standard input is not valid UTF-8 (byte 0x{encoded[error.start]:02x} at offset "
                f"{error.start}); convert it, for example with iconv"
            ) from None
        # The newline that echo, cat and editors put at the end is not part of a prompt.
        text = text.removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise ConfigError("the prompt is empty; give some text")
    return text


def _prompt_tokens(session: Session, text: str, options: dict[str, Any]) -> list[int]:
    as_chat = options["as_chat"]
    if as_chat is None:
        as_chat = session.model.chat_template is not None
        if not as_chat:
            click.echo(
                "note: the model has no chat template; continuing the text as it is", err=True
            )
    if not as_chat:
        return session.prompt_tokens(text)
    messages = [{"role": "user", "content": text}]
    if options["system"] is not None:
        messages.insert(0, {"role": "system", "content": options["system"]})
    return session.chat_tokens(messages)


def _answer(
    session: Session,
    tokens: list[int],
    sampling: SamplingConfig,
    *,
    limits: GenerationConfig,
    show: bool,
) -> Answer:
    """Generate to the end; write the text as it comes if it is to be shown."""
    with Progress("reading the prompt", unit="tokens") as progress:
        answer = session.stream(tokens, sampling, limits, on_prefill=progress.show)
        for event in answer:
            progress.clear()
            if show and event.text:
                sys.stdout.write(event.text)
                sys.stdout.flush()
    if show and sys.stdout.isatty():
        sys.stdout.write("\n")
    return answer


def _compare(
    session: Session,
    ask: Callable[..., Answer],
    sampling: SamplingConfig,
    drafted: Answer,
) -> dict[str, Any]:
    """Answer again without drafting, from an empty cache as the first time."""
    session.forget()
    session.use(DraftConfig(mode="off"))
    plain = ask(replace(sampling, seed=drafted.stats.seed), show=False)
    ratio = 0.0
    if plain.stats.tokens_per_s > 0:
        ratio = drafted.stats.tokens_per_s / plain.stats.tokens_per_s
    return {
        "plain_tokens_per_s": plain.stats.tokens_per_s,
        "speedup": ratio,
        "same_as_plain": plain.tokens == drafted.tokens,
    }


def _report(
    answer: Answer,
    compared: dict[str, Any] | None,
    origins: list[tuple[str, int]],
    *,
    as_json: bool,
    more: bool,
) -> None:
    stats = answer.stats
    if as_json:
        told: dict[str, Any] = {
            "text": answer.text,
            "tokens": answer.tokens,
            "finish_reason": answer.finish_reason,
            "stats": stats.as_dict(),
        }
        if compared is not None:
            told["compare"] = compared
        if origins:
            told["drafted_from"] = dict(origins)
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    for notice in stats.notices:
        click.echo(f"note: {notice}", err=True)
    click.echo(stats.line(), err=True)
    for line in source_lines(stats, origins) if more else ():
        click.echo(line, err=True)
    if compared is not None:
        same = (
            "the same text" if compared["same_as_plain"] else "another text (rounding near a tie)"
        )
        click.echo(
            f"plain {compared['plain_tokens_per_s']:.0f} tok/s · {stats.draft} "
            f"{stats.tokens_per_s:.0f} tok/s ({compared['speedup']:.2f}x) · {same}",
            err=True,
        )
