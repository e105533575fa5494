"""``racer-local serve``: an OpenAI-compatible server."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from racer_local.cli.books import check_books
from racer_local.cli.options import (
    book_option,
    draft_config,
    draft_options,
    model_config,
    model_options,
)
from racer_local.errors import ConfigError
from racer_local.web.origins import TrustedNames, require_safe_bind

if TYPE_CHECKING:
    from fastapi import FastAPI

    from racer_local.server.host import ModelHost

__all__ = ["command"]

_PORT = 8642
_KEY_VARIABLE = "RACER_API_KEY"


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option("--port", default=_PORT, show_default=True, help="0 takes any free one.")
@click.option("--api-key-file", type=click.Path(), help="File with the key that requests bring.")
@click.option("--no-key", is_flag=True, help="Serve other machines without a key, all the same.")
@click.option("--allow-host", multiple=True, help="Another name of this server; repeatable.")
@click.option(
    "--allow-origin",
    multiple=True,
    help="A web origin whose pages may call, as in http://localhost:3000; repeatable.",
)
@click.option(
    "--queue", default=32, show_default=True, help="Requests that may wait; more get a 503."
)
@click.option(
    "--idle-unload",
    type=float,
    metavar="MIN",
    help="Unload the model after so many idle minutes.  [default: never]",
)
@click.option(
    "--draft-memory",
    type=click.Choice(["off", "conversation", "server"]),
    default="conversation",
    show_default=True,
    help="Which earlier texts drafts may be taken from.",
)
@click.option("--ui", "has_ui", is_flag=True, help="Offer the chat page too, at /ui.")
@click.option("--name", help="The model's name to clients.  [default: the file's]")
@model_options
@draft_options
@book_option
@click.option("--debug", is_flag=True, help="Show a traceback if something fails.")
def command(host: str, port: int, **options: Any) -> int:
    """Serve a model to programs that speak OpenAI's API.

    \b
    Examples:
      racer-local serve
      racer-local serve --model path/to/model.gguf --port 8000
      racer-local serve --ui
      RACER_API_KEY=secret racer-local serve --host 0.0.0.0

    Clients use http://127.0.0.1:8642/v1 and any key, unless one is set: in the variable
    RACER_API_KEY or with --api-key-file. docs/server.md has a page for each client.
    """
    key = _api_key(options["api_key_file"])
    require_safe_bind(host, has_key=key is not None, is_forced=options["no_key"])
    names = TrustedNames(
        bind=host,
        hosts=frozenset(options["allow_host"]),
        origins=frozenset(options["allow_origin"]),
    )
    draft = draft_config(options, memory=options["draft_memory"])
    check_books(options, draft)
    try:
        from racer_local.server.limits import ServeConfig
        from racer_local.server.running import run_server
        from racer_local.web.runner import bind
    except ImportError as error:
        raise ConfigError(
            f"the server needs more packages ({error.name} is missing); get them with: "
            "pip install 'racer-local[server]', or in a checkout: make serve"
        ) from error
    pages = _ui_modules() if options["has_ui"] else None
    idle = options["idle_unload"]
    config = ServeConfig(
        api_key=key,
        max_queue=options["queue"],
        idle_unload_s=None if idle is None else 60 * idle,
    )
    if key is None and options["no_key"]:
        click.echo("warning: everybody who reaches this address can use the model", err=True)
    with bind(host, port) as listener:
        model = model_config(options, draft)

        def add_page(app: FastAPI, host: ModelHost, path: str) -> None:
            assert pages is not None
            page, shared = pages
            page.add_page(app, shared.SharedService(host, model, draft), names, path)

        run_server(
            listener,
            names,
            config,
            model,
            draft,
            name=options["name"] or model.path.stem,
            books=options["books"],
            add_page=add_page if pages is not None else None,
            say=lambda line: click.echo(f"racer-local: {line}", err=True),
        )
    return 0


def _ui_modules() -> tuple[ModuleType, ModuleType]:
    from racer_local.cli.ui_package import ui_module

    try:
        return ui_module("app"), ui_module("shared")
    except ImportError as error:
        raise ConfigError(
            f"the chat page needs more packages ({error.name} is missing); get them with: "
            "pip install 'racer-local[server,ui]', or leave out --ui"
        ) from error


def _api_key(path: str | None) -> str | None:
    """Read the key from a file, or else from the environment; never from the command line.

    Other users of a machine can read command lines.
    """
    if path is None:
        return os.environ.get(_KEY_VARIABLE)
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key file {path!r} cannot be read: {error}") from error
    if not key:
        raise ConfigError(f"the key file {path!r} is empty")
    return key
