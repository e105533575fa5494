"""``racer-local verify``: how lossless is a model on this machine?"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from racer_local.cli.options import device_options, model_config
from racer_local.cli.progress import Progress
from racer_local.config import DraftConfig

if TYPE_CHECKING:
    from racer_local.decoding.session import Session

__all__ = ["command"]


@click.command("verify")
@click.argument("model", required=False)
@click.option("--quick", is_flag=True, help="Fewer prompts and contexts: under a minute.")
@click.option("--full", is_flag=True, help="100 prompts of 256 tokens, long contexts: hours.")
@click.option("--ctx", type=int, help="Context size in tokens.  [default: at most 4096]")
@device_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--debug", is_flag=True, help="Show a traceback if something fails.")
def command(**options: Any) -> int:
    """Check that drafting leaves a model's output alone on this machine, and how exactly.

    MODEL is a GGUF file or a catalog name.

    \b
    Examples:
      racer-local verify smollm2-135m-instruct
      racer-local verify path/to/model.gguf --quick --json

    Compares batches with single tokens bit by bit, answers with and without drafts token by
    token, and drawn tokens with the model's distribution; once with default settings and once
    with --exact. Ends with 1 if something cannot be explained by rounding.
    """
    from racer_local.gguf.header import inspect_gguf
    from racer_local.hardware.machine import describe_machine, describe_model
    from racer_local.verification.report import as_dict, faults, report
    from racer_local.verification.runner import FULL, NORMAL, QUICK, run

    if options["quick"] and options["full"]:
        raise click.UsageError("--quick and --full exclude each other")
    plan = QUICK if options["quick"] else FULL if options["full"] else NORMAL
    path = model_config(options, DraftConfig()).path
    with Progress("verifying", unit="steps") as progress:
        findings = run(lambda exact: _opened({**options, "exact": exact}), plan, progress.show)
    if options["as_json"]:
        machine, model = describe_machine(), describe_model(inspect_gguf(path))
        click.echo(json.dumps({"machine": machine, "model": model, **as_dict(findings)}))
    else:
        click.echo(report(findings))
    return 1 if faults(findings) else 0


@contextlib.contextmanager
def _opened(options: dict[str, Any]) -> Iterator[Session]:
    from racer_local.concurrency.compute_thread import CallerThread
    from racer_local.decoding.session import Session

    draft = DraftConfig()
    with Session(model_config(options, draft), draft, compute=CallerThread()) as model:
        yield model
