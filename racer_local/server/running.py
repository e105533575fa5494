"""Opens a model and serves it until told to stop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from fastapi import FastAPI
from fastapi.responses import RedirectResponse

from racer_local.config import DraftConfig, ModelConfig, choose_n_ctx
from racer_local.decoding.session import Session
from racer_local.errors import ModelLoadError, RacerError
from racer_local.gguf.header import inspect_gguf
from racer_local.server.app import make_server_app
from racer_local.server.host import ModelHost, ModelState
from racer_local.server.limits import ServeConfig
from racer_local.server.service import ApiService
from racer_local.web.origins import TrustedNames
from racer_local.web.runner import serve, url_of

__all__ = ["PAGE_PATH", "AddPage", "run_server"]

PAGE_PATH = "/ui"
# A page that never leaves its turn must not keep the program from ending.
_CLOSE_S = 30.0
# Puts the chat page of a model into an app, under a path.
AddPage: TypeAlias = Callable[[FastAPI, ModelHost, str], None]


def run_server(
    listener: socket.socket,
    names: TrustedNames,
    config: ServeConfig,
    model: ModelConfig,
    draft: DraftConfig,
    *,
    name: str,
    books: Sequence[str] = (),
    add_page: AddPage | None = None,
    say: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        listener: where.
        names: whom.
        config: the limits.
        model: which model.
        draft: how to draft.
        name: of the model, to clients.
        books: phrase books to draft from.
        add_page: offers the chat page too.
        say: tells the user what happens.

    Raises:
        RacerError: the model cannot be loaded.
    """
    header = inspect_gguf(model.path)
    trained = header.context_length
    n_ctx = choose_n_ctx(model.n_ctx, trained or 0)
    failed = threading.Event()
    has_told: list[bool] = []

    def on_state(state: ModelState) -> None:
        if state == "failed":
            failed.set()
        if state == "unloaded":
            say("idle; the model is unloaded until the next request")
        if state == "ready" and not has_told:
            has_told.append(True)
            for notice in host.session().notices:
                say(f"note: {notice}")
            say(f"{name} is ready, {n_ctx} tokens of context")

    host = ModelHost(
        lambda calls: Session(replace(model, n_ctx=n_ctx), draft, books=books, calls=calls),
        name=name,
        n_ctx=n_ctx,
        n_ctx_train=trained or 0,
        max_queue=config.max_queue,
        idle_unload_s=config.idle_unload_s,
        on_state=on_state,
    )
    app = _make_app(host, config, names, add_page)

    def on_ready() -> None:
        say(f"serving {name} at {url_of(listener)}/v1 (Ctrl-C ends it)")
        if add_page is not None:
            say(f"the chat page is at {url_of(listener)}{PAGE_PATH}")
        host.start()

    try:
        serve(app, listener, on_ready=on_ready, on_stop=host.stop, should_stop=failed.is_set)
    finally:
        host.stop()
        host.wait_closed(_CLOSE_S)
    _raise_error_of(host)


def _make_app(
    host: ModelHost, config: ServeConfig, names: TrustedNames, add_page: AddPage | None
) -> FastAPI:
    service = ApiService(host, config)
    if add_page is None:
        return make_server_app(service, names)
    app = make_server_app(service, names, PAGE_PATH)

    @app.get("/", include_in_schema=False)
    async def to_the_page() -> RedirectResponse:
        return RedirectResponse(f"{PAGE_PATH}/")

    # The page names this one as if it were alone here.
    @app.get("/manifest.json", include_in_schema=False)
    async def to_its_manifest() -> RedirectResponse:
        return RedirectResponse(f"{PAGE_PATH}/manifest.json")

    add_page(app, host, PAGE_PATH)
    return app


def _raise_error_of(host: ModelHost) -> None:
    if host.error is None:
        return
    if isinstance(host.error, RacerError):
        raise host.error
    raise ModelLoadError(f"the model could not be opened: {host.error}") from host.error
