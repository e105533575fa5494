"""The app that the chat page and the HTTP API live in. Needs FastAPI (extra ``ui``, ``server``)."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from racer_local import __version__
from racer_local.web.guard import BodyLimit, Guard
from racer_local.web.headers import SecurityHeaders
from racer_local.web.origins import TrustedNames

__all__ = ["MAX_BODY_BYTES", "make_app"]

# A context of a million tokens as JSON, with room to spare.
MAX_BODY_BYTES = 16 * 2**20


def make_app(
    names: TrustedNames,
    *,
    title: str = "racer_local",
    max_body_bytes: int = MAX_BODY_BYTES,
    checks: Sequence[Middleware] = (),
) -> FastAPI:
    """Make an empty app that answers only requests that are meant for it.

    From the outside in: host and origin checks, security headers, body limit, CORS. It has no
    documentation pages, since those load scripts from elsewhere.

    Args:
        names: whose requests are answered; its origins get CORS headers.
        title: of the app.
        max_body_bytes: most bytes of a request's body.
        checks: further layers, asked after host and origin, the last one first.
    """
    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    # Always there, if only with an empty list: Gradio leaves CORS to us where it sees this class.
    # Starlette puts what is added last outermost.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=sorted(names.origins),
        allow_methods=["GET", "POST", "OPTIONS"],
        allow_headers=["*"] if names.origins else [],
    )
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes)
    app.add_middleware(SecurityHeaders)
    app.user_middleware[:0] = reversed(checks)
    app.add_middleware(Guard, names=names)
    return app
