"""``racer-local ui``: the chat page."""

from __future__ import annotations

import webbrowser
from typing import Any

import click

from racer_local.cli.books import check_books
from racer_local.cli.options import (
    book_options,
    draft_config,
    draft_options,
    model_config,
    model_options,
)
from racer_local.cli.progress import Progress
from racer_local.errors import ConfigError
from racer_local.web.origins import TrustedNames, is_loopback

__all__ = ["command"]

_PORT = 7860


@click.command("ui")
@click.option("--host", default="127.0.0.1", show_default=True, help="A loopback address.")
@click.option("--port", default=_PORT, show_default=True, help="0 takes any free one.")
@click.option("--browser/--no-browser", default=False, help="Open the page in your browser.")
@model_options
@draft_options
@book_options
@click.option("--debug", is_flag=True, help="Show a traceback if something fails.")
def command(host: str, port: int, browser: bool, **options: Any) -> int:
    """Chat in your browser and see where the speed comes from.

    \b
    Examples:
      racer-local ui
      racer-local ui --model path/to/model.gguf --port 8000 --browser

    The page is served to this machine only. From another one, use a tunnel:
    ssh -L 7860:127.0.0.1:7860 THIS-MACHINE
    """
    if not is_loopback(host):
        raise ConfigError(
            f"the chat page is for this machine only, and {host} is not a loopback address; from "
            f"another machine use a tunnel: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE"
        )
    draft = draft_config(options)
    check_books(options, draft)
    try:
        from racer_local.cli.ui_package import ui_module
        from racer_local.web.runner import bind, serve, url_of

        app_module, service_module = ui_module("app"), ui_module("service")
    except ImportError as error:
        raise ConfigError(
            f"the chat page needs more packages ({error.name} is missing); get them with: "
            "pip install 'racer-local[ui]', or in a checkout: make ui"
        ) from error
    with bind(host, port) as listener:
        config = model_config(options, draft)
        with Progress("loading the model", unit="%", scale=100) as progress:
            service = service_module.PageService(
                config,
                draft,
                lambda s: progress.show(s, 1.0),
                books=options["books"],
                remembers=options["remember"],
            )
        with service:
            app = app_module.make_ui_app(service, TrustedNames(bind=host))
            url = url_of(listener)

            def on_ready() -> None:
                click.echo(f"racer-local: the page is at {url} (Ctrl-C ends it)", err=True)
                if browser:
                    webbrowser.open(url)

            serve(app, listener, on_ready=on_ready, on_stop=service.stop_all)
    return 0
