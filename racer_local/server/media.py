"""ASGI middleware: bodies are JSON, and answers are counted. Layer: pure ASGI."""

from __future__ import annotations

from collections.abc import Callable

from racer_local.web.guard import App, Message, Receive, Scope, Send, refuse

__all__ = ["JsonOnly", "RequestCount"]

_ENDPOINTS = frozenset(
    {
        "chat/completions",
        "completions",
        "models",
        "tokenize",
        "detokenize",
        "health",
        "metrics",
        "openapi.json",
    }
)


class JsonOnly:
    """Refuses other bodies: a page may send those to any site without asking (no preflight)."""

    def __init__(self, app: App) -> None:
        """Stand before ``app``."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 415."""
        if scope["type"] == "http" and scope["method"] == "POST":
            kinds = [value for name, value in scope["headers"] if name == b"content-type"]
            if [kind.split(b";")[0].strip().lower() for kind in kinds] != [b"application/json"]:
                message = "send the body as JSON (Content-Type: application/json)"
                await refuse(scope, send, 415, message, "unsupported_media_type")
                return
        await self._app(scope, receive, send)


class RequestCount:
    """Tells every answer's address and status; unknown addresses are one."""

    def __init__(self, app: App, count: Callable[[str, int], None]) -> None:
        """Stand before ``app``."""
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""

        async def counted(event: Message) -> None:
            if event["type"] == "http.response.start":
                path = scope["path"].strip("/").removeprefix("v1/")
                known = path if path in _ENDPOINTS else path.split("/")[0]
                self._count(known if known in _ENDPOINTS else "other", event["status"])
            await send(event)

        await self._app(scope, receive, counted if scope["type"] == "http" else send)
