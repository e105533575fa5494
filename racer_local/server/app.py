"""The app: routes behind the checks that the web apps share, and those of an API."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware import Middleware

from racer_local.server.faults import install_error_handlers
from racer_local.server.keys import KeyCheck
from racer_local.server.media import JsonOnly, RequestCount
from racer_local.server.routes import add_routes
from racer_local.server.service import ApiService
from racer_local.web.app import make_app
from racer_local.web.origins import TrustedNames

__all__ = ["make_server_app"]


def make_server_app(service: ApiService, names: TrustedNames, page: str | None = None) -> FastAPI:
    """Make the app.

    Args:
        service: answers.
        names: whose requests are answered.
        page: where a page for browsers will be put into the app, if one will.
    """
    config = service.config
    checks = [Middleware(JsonOnly)]
    if config.api_key is not None:
        checks.append(Middleware(KeyCheck, key=config.api_key, page=page))
    app = make_app(names, title="racer_local", max_body_bytes=config.max_body_bytes, checks=checks)
    app.add_middleware(RequestCount, count=service.metrics.answered)
    install_error_handlers(app)
    add_routes(app, service)
    return app
