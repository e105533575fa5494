"""ASGI middleware that turns strangers away. Layer: pure ASGI (no framework)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

from racer_local.web.origins import TrustedNames

__all__ = ["App", "BodyLimit", "Guard", "Message", "Receive", "Scope", "Send", "refuse"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_POLICY_VIOLATION = 1008
# No proxy stands before us, so whoever sends these wants to be taken for someone else.
_PROXY_HEADERS = (b"forwarded", b"x-forwarded-")


async def refuse(
    scope: Scope,
    send: Send,
    status: int,
    message: str,
    code: str,
    more: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Answer with an error in the form that OpenAI clients understand; close a web socket.

    ``more`` are further headers.
    """
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": code})
        return
    kind = "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        # The rest of a body that nobody will read must not be taken for the next request.
        (b"connection", b"close"),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Guard:
    """Refuses requests for another host and from foreign pages, before anything reads them."""

    def __init__(self, app: App, names: TrustedNames) -> None:
        """Stand before ``app``; has to be the outermost layer."""
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or not self._names.accepts_host(hosts[0]):
            message = "this server answers to names of its own machine only (Host header)"
            await refuse(scope, send, 403, message, "host_not_allowed")
            return
        for origin in _values(scope, b"origin"):
            if not self._names.accepts_origin(origin, hosts[0]):
                message = "pages of other sites may not use this server (Origin header)"
                await refuse(scope, send, 403, message, "origin_not_allowed")
                return
        # Browsers that leave out Origin on a post still say where it comes from.
        is_read = scope.get("method") in ("GET", "HEAD", "OPTIONS")
        if not is_read and not _values(scope, b"origin"):
            sites = _values(scope, b"sec-fetch-site")
            if any(site not in ("same-origin", "none") for site in sites):
                message = "pages of other sites may not use this server (Sec-Fetch-Site header)"
                await refuse(scope, send, 403, message, "origin_not_allowed")
                return
        headers = [pair for pair in scope["headers"] if not pair[0].startswith(_PROXY_HEADERS)]
        await self._app({**scope, "headers": headers}, receive, send)


class BodyLimit:
    """Refuses request bodies that are too large, announced or not."""

    def __init__(self, app: App, max_bytes: int) -> None:
        """Stand before ``app``."""
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        message = f"the request is larger than {self._max_bytes} bytes"
        announced = _values(scope, b"content-length")
        if any(not n.isascii() or not n.isdigit() or int(n) > self._max_bytes for n in announced):
            await refuse(scope, send, 413, message, "request_too_large")
            return
        n_bytes = 0
        has_answered = is_too_large = False

        async def counted() -> Message:
            nonlocal n_bytes, is_too_large
            event = await receive()
            n_bytes += len(event.get("body", b""))
            if n_bytes > self._max_bytes:
                is_too_large = True
                raise _TooLargeError
            return event

        async def noted(event: Message) -> None:
            nonlocal has_answered
            # Frameworks may catch the error and make an answer of their own of it.
            if is_too_large and not has_answered:
                return
            has_answered = True
            await send(event)

        with contextlib.suppress(_TooLargeError):
            await self._app(scope, counted, noted)
        if is_too_large and not has_answered:
            await refuse(scope, send, 413, message, "request_too_large")


class _TooLargeError(Exception):
    """A body that did not announce its size went over the limit."""


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]
