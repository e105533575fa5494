"""``racer-local bench``: plain decoding, draft modes and other programs on the same prompts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from racer_local.cli.opening import open_session
from racer_local.cli.options import model_config, model_options
from racer_local.cli.progress import Progress
from racer_local.config import DraftConfig
from racer_local.errors import ConfigError, RacerError
from racer_local.wording import counted

if TYPE_CHECKING:
    from racer_local.bench.contest import Contestant
    from racer_local.bench.runner import Race
    from racer_local.bench.suites import Prompt
    from racer_local.decoding.session import Session

__all__ = ["command"]

_QUICK = {"modes": "off,auto,racer:8", "per_category": 2, "max_tokens": 96}
_FULL = {
    "modes": "off,auto,racer,retrieval,logits,pld,auto+exact",
    "per_category": None,
    "max_tokens": 200,
}


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to measure: the options with their defaults, checked."""

    suites: list[str]
    modes: dict[str, DraftConfig]
    per_category: int | None
    max_tokens: int
    peers: bool
    prompts: list[Prompt]


@click.command("bench")
@click.option(
    "--suites",
    default="all",
    show_default=True,
    metavar="LIST",
    help="spec_bench, humaneval, mgsm_zh, code_edit, or single categories such as qa.",
)
@click.option(
    "--modes",
    metavar="LIST",
    help="Draft modes; racer:16 sets a budget, auto+exact decodes as with --exact.  "
    f"[default: {_QUICK['modes']}]",
)
@click.option("--per-category", type=int, metavar="N", help="Prompts of each.  [default: 2]")
@click.option("--max-tokens", "-n", type=int, metavar="N", help="Per answer.  [default: 96]")
@click.option(
    "--peers/--no-peers",
    default=None,
    help="Measure llama-cpp-python as well, plain and with its prompt lookup.",
)
@click.option(
    "--llama-server",
    "server",
    type=click.Path(exists=True, dir_okay=False),
    metavar="PATH",
    help="Measure this llama-server as well, plain and with draftless speculation.",
)
@click.option(
    "--spec-types",
    metavar="LIST",
    help="Of these --spec-type; none is plain decoding.  [default: all without a draft model]",
)
@click.option(
    "--full",
    is_flag=True,
    help="All prompts but those that warm reads, 200 tokens, all modes, --peers; takes hours.",
)
@model_options
@click.option("--json", "json_path", metavar="FILE", help="Write all figures; - is stdout.")
@click.option("--plot", "plot_path", metavar="FILE.png", help="Draw the speedups.")
@click.option(
    "--record",
    "record_path",
    metavar="FILE.npz",
    help="Do not measure: record plain answers as a trace for replay.",
)
@click.option("--debug", is_flag=True, help="Show a traceback if something fails.")
def command(**options: Any) -> int:
    """Measure speed on bundled prompts, greedily, against plain decoding in the same run.

    \b
    Examples:
      racer-local bench
      racer-local bench --suites code_edit,qa --modes auto,racer:16 --per-category 6
      racer-local bench --modes auto,auto+exact --per-category 2
      racer-local bench --peers --llama-server ./llama-server --json bench.json
      racer-local bench --record trace.npz

    All contestants answer one prompt before the next one comes, in turning order. The speed is
    that of decoding: tokens after the first of each answer over the seconds they took. Modes with
    +exact have a context of their own in the same run, and are compared with plain decoding
    there as well (off+exact). Ctrl-C reports what is complete by then.
    """
    plan = _plan(options)
    for path in (options["json_path"], options["plot_path"], options["record_path"]):
        _require_folder(path)
    if options["plot_path"] is not None:
        from racer_local.bench.plot import require_matplotlib

        require_matplotlib()
    with _ended_by_sigterm():
        if options["record_path"] is not None:
            return _record(plan, options)
        return _measure(plan, options)


def _plan(options: dict[str, Any]) -> _Plan:
    from racer_local.bench.contest import EXACT_BASE, parse_modes
    from racer_local.bench.suites import choose

    usual = _FULL if options["full"] else _QUICK
    asked: dict[str, Any] = {
        key: options[key] if options[key] is not None else usual[key] for key in usual
    }
    if asked["max_tokens"] < 2:
        raise ConfigError(f"max tokens is {asked['max_tokens']}; a speed needs at least 2")
    suites = [name.strip() for name in options["suites"].split(",") if name.strip()]
    modes = parse_modes(asked["modes"])
    if options["exact"] and EXACT_BASE in modes:
        raise ConfigError("with --exact every mode is exact; write modes without +exact")
    return _Plan(
        suites=suites,
        modes=modes,
        per_category=asked["per_category"],
        max_tokens=asked["max_tokens"],
        peers=options["full"] if options["peers"] is None else options["peers"],
        prompts=choose(suites, asked["per_category"]),
    )


def _require_folder(path: str | None) -> None:
    # Better now than after minutes of measuring.
    if path not in (None, "-") and not os.path.isdir(os.path.dirname(os.path.abspath(path or ""))):
        raise ConfigError(f"cannot write {path}: there is no such folder")


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that no server of ours outlives us."""
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _opened(
    options: dict[str, Any], draft: DraftConfig, *, all_rows: bool = False
) -> Iterator[Session]:
    from racer_local.bench.record import batch_for_all_rows
    from racer_local.concurrency.compute_thread import CallerThread
    from racer_local.gguf.header import inspect_gguf

    config = model_config(options, draft)
    if all_rows:
        n_vocab = inspect_gguf(config.path).n_vocab or 2**18
        config = replace(config, n_batch=batch_for_all_rows(n_vocab))
    with open_session(config, draft, compute=CallerThread()) as model:
        for notice in model.notices:
            click.echo(f"note: {notice}", err=True)
        yield model


def _record(plan: _Plan, options: dict[str, Any]) -> int:
    from racer_local.bench.record import record_prompts, trace_of
    from racer_local.bench.trace import write_trace

    records = []
    is_stopped = False
    n_turns = sum(len(prompt.turns) for prompt in plan.prompts)
    small = DraftConfig(mode="racer", budget=1)
    with _opened(options, small, all_rows=True) as model:
        try:
            with Progress("recording", unit="answers") as progress:
                for record in record_prompts(
                    model,
                    plan.prompts,
                    as_chat=model.model.chat_template is not None,
                    max_tokens=plan.max_tokens,
                    n_ctx=model.target.n_ctx,
                ):
                    records.append(record)
                    progress.show(len(records), n_turns)
        except KeyboardInterrupt:
            is_stopped = True
            if not records:
                raise
    write_trace(options["record_path"], trace_of(records))
    click.echo(f"recorded {counted(len(records), 'answer')} in {options['record_path']}", err=True)
    return 130 if is_stopped else 0


def _measure(plan: _Plan, options: dict[str, Any]) -> int:
    from racer_local.bench.contest import tree_size
    from racer_local.bench.runner import Race
    from racer_local.bench.startup import measure_startup

    startup = measure_startup()
    started = time.monotonic()
    is_stopped = False
    with (
        _opened(options, tree_size(plan.modes)) as model,
        _opened_exactly(plan, options, model) as exact_model,
        _contestants(plan, options, model, exact_model) as contestants,
    ):
        as_chat = model.model.chat_template is not None
        n_ctx = model.target.n_ctx
        race = Race(model, contestants, as_chat=as_chat, max_tokens=plan.max_tokens, n_ctx=n_ctx)
        try:
            with Progress("measuring", unit="answers") as progress:
                race.run(plan.prompts, progress.show)
        except KeyboardInterrupt:
            is_stopped = True
        settings = {
            "suites": plan.suites,
            "modes": list(plan.modes),
            "contestants": [contestant.name for contestant in contestants],
            "per_category": plan.per_category,
            "n_prompts": len(plan.prompts),
            "max_tokens": plan.max_tokens,
            "n_ctx": n_ctx,
            "n_threads": model.target.n_threads,
            "device": options["device"],
            "gpu_layers": options["gpu_layers"],
            "flash_attention": True,
            "kv_type": model.target.kv_type,
            "exact": options["exact"],
            "exact_kv_type": exact_model and exact_model.target.kv_type,
            "exact_nodes": exact_model and exact_model.target.max_nodes,
            "temperature": 0,
            "chat": as_chat,
            "skipped": [f"{p.category}/{p.question_id}" for p in race.skipped],
            "dropped": race.dropped,
            "is_complete": not is_stopped,
            "notices": model.notices,
            "startup_s": startup,
        }
        header = model.model.header
    settings["wall_s"] = time.monotonic() - started
    _report(race, settings, header, options)
    return 130 if is_stopped else 0


@contextlib.contextmanager
def _opened_exactly(
    plan: _Plan, options: dict[str, Any], model: Session
) -> Iterator[Session | None]:
    """Open the model a second time for modes with +exact; None where there are none."""
    from racer_local.bench.contest import EXACT_BASE, tree_size

    if EXACT_BASE not in plan.modes:
        yield model if options["exact"] else None
        return
    with _opened({**options, "exact": True}, tree_size(plan.modes)) as exact_model:
        yield exact_model


@contextlib.contextmanager
def _contestants(
    plan: _Plan, options: dict[str, Any], model: Session, exact_model: Session | None
) -> Iterator[list[Contestant]]:
    """Yield all who take part; other programs run until the block is left."""
    from racer_local.bench.contest import BASE, EXACT_BASE, ModeContestant, base_of
    from racer_local.bench.peers import (
        SPEC_TYPES,
        PeerSettings,
        open_python_peers,
        open_servers,
    )
    from racer_local.bench.runner import needed_context

    model_of = {BASE: model, EXACT_BASE: exact_model or model}
    contestants: list[Contestant] = [
        ModeContestant(name, config, model_of[base_of(name)]) for name, config in plan.modes.items()
    ]
    with contextlib.ExitStack() as stack:
        if plan.peers or options["server"]:
            as_chat = model.model.chat_template is not None
            needed = needed_context(model, plan.prompts, plan.max_tokens, as_chat=as_chat)
            gpu_layers = -1 if options["gpu_layers"] is None else options["gpu_layers"]
            settings = PeerSettings(
                path=str(model.model.path),
                n_ctx=min(model.target.n_ctx, needed),
                n_threads=model.target.n_threads,
                n_gpu_layers=0 if options["device"] == "cpu" else gpu_layers,
                kv_type=model.target.kv_type,
            )
            click.echo("starting the other programs", err=True)
            if plan.peers:
                contestants += stack.enter_context(open_python_peers(settings))
            if options["server"]:
                asked = options["spec_types"]
                kinds = SPEC_TYPES if asked is None else [kind.strip() for kind in asked.split(",")]
                contestants += stack.enter_context(open_servers(options["server"], settings, kinds))
        yield contestants


def _report(race: Race, settings: dict[str, Any], header: Any, options: dict[str, Any]) -> None:
    from racer_local.bench.report import summarize, table
    from racer_local.bench.startup import startup_line
    from racer_local.hardware.machine import describe_machine, describe_model

    modes = summarize(race.rounds, settings["contestants"])
    for name, reason in race.dropped.items():
        click.echo(f"note: {name} dropped out: {reason}", err=True)
    if race.skipped:
        prompts, n_ctx = counted(len(race.skipped), "prompt"), settings["n_ctx"]
        click.echo(f"note: left out {prompts} longer than the context of {n_ctx}", err=True)
    # First what cannot fail: figures of hours must not be lost to a full disk.
    if options["json_path"] != "-":
        click.echo(table(modes))
        click.echo(f"\n{startup_line(settings['startup_s'])}")
    if options["json_path"] is not None:
        machine, model = describe_machine(), describe_model(header)
        result = {"machine": machine, "model": model, "settings": settings, "modes": modes}
        _write_json(options["json_path"], result)
    if options["plot_path"] is not None and modes:
        from racer_local.bench.plot import plot

        plot(modes, options["plot_path"], header.name or header.path.name)


def _write_json(path: str, result: dict[str, Any]) -> None:
    if path == "-":
        click.echo(json.dumps(result))
        return
    try:
        with click.open_file(path, "w", encoding="utf-8", atomic=True) as file:
            json.dump(result, file, indent=1)
    except OSError as error:
        raise RacerError(f"cannot write {path}: {error.strerror}") from error
