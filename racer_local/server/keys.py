"""ASGI middleware that asks for the API key. Layer: pure ASGI."""

from __future__ import annotations

import hmac

from racer_local.web.guard import App, Receive, Scope, Send, refuse

__all__ = ["KeyCheck"]

# Probes of a machine's health have no key; a browser's preflight cannot bring one.
_OPEN_PATHS = frozenset({"/health", "/v1/health"})


class KeyCheck:
    """Refuses requests without the key, in either of the two headers that clients use."""

    def __init__(self, app: App, key: str) -> None:
        """Stand before ``app``."""
        self._app = app
        self._key = key.strip().encode("utf-8")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] not in ("http", "websocket") or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        if any([hmac.compare_digest(key, self._key) for key in _keys(scope)]):
            await self._app(scope, receive, send)
            return
        message = "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'"
        await refuse(scope, send, 401, message, "invalid_api_key")

    def _is_open(self, scope: Scope) -> bool:
        return scope.get("method") == "OPTIONS" or scope["path"] in _OPEN_PATHS


def _keys(scope: Scope) -> list[bytes]:
    keys = []
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            keys.append(bytes(value).strip())
        elif name == b"authorization" and value[:7].lower() == b"bearer ":
            keys.append(bytes(value[7:]).strip())
    return keys
