"""``racer-local warm``: learn a model's habits from bundled prompts, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from racer_local.cli.options import device_options, model_config
from racer_local.cli.progress import Progress
from racer_local.config import DraftConfig
from racer_local.errors import ConfigError

__all__ = ["command"]


@click.command("warm")
@click.argument("model", required=False)
@click.option(
    "--minutes", type=float, default=1.5, show_default=True, help="How long to go on reading."
)
@click.option(
    "--max-tokens", "-n", type=int, default=128, show_default=True, help="Most tokens per answer."
)
@device_options
@click.option("--debug", is_flag=True, help="Show a traceback if something fails.")
def command(**options: Any) -> int:
    """Learn how a model likes to go on, from bundled public prompts; once per model.

    MODEL is a GGUF file or a catalog name.

    \b
    Example:
      racer-local warm smollm2-135m-instruct

    `auto` then drafts from what it learned where the text at hand has nothing to copy from. No
    text of yours is read. The file in your cache folder holds a few megabytes and may be deleted.
    """
    from racer_local.bench.record import batch_for_all_rows
    from racer_local.bench.warm import fill_row_memory
    from racer_local.concurrency.compute_thread import CallerThread
    from racer_local.decoding.session import Session
    from racer_local.drafting.auto.row_memory import RowMemory
    from racer_local.drafting.auto.row_memory_store import save_row_memory
    from racer_local.gguf.fingerprint import fingerprint
    from racer_local.gguf.header import inspect_gguf

    if not options["minutes"] > 0 or options["max_tokens"] < 1:
        raise ConfigError("minutes and max tokens must be positive")
    draft = DraftConfig(mode="racer", budget=1)
    config = model_config({**options, "ctx": None}, draft)
    n_vocab = inspect_gguf(config.path).n_vocab or 2**18
    memory = RowMemory(fingerprint(config.path))
    is_stopped = False
    config = replace(config, n_batch=batch_for_all_rows(n_vocab))
    with Session(config, draft, compute=CallerThread()) as model:
        try:
            with Progress("reading", unit="s") as progress:
                fill_row_memory(
                    model,
                    memory,
                    as_chat=model.model.chat_template is not None,
                    n_ctx=model.target.n_ctx,
                    max_tokens=options["max_tokens"],
                    seconds=60 * options["minutes"],
                    on_progress=progress.show,
                )
        except KeyboardInterrupt:
            is_stopped = True
            if not len(memory):
                raise
    path = save_row_memory(memory)
    click.echo(f"kept {len(memory)} rows in {path}", err=True)
    return 130 if is_stopped else 0
