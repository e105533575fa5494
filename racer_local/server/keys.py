"""ASGI middleware that asks for the API key. Layer: pure ASGI.

Programs bring it in a header. A browser that opens the chat page cannot; it is asked for a user
and a password instead (HTTP's own way), and brings the key as the password with all requests of
the page. Other sites cannot use that: their requests do not get as far as here.
"""

from __future__ import annotations

import base64
import binascii
import hmac

from racer_local.web.guard import App, Receive, Scope, Send, refuse

__all__ = ["KeyCheck"]

# Probes of a machine's health have no key; a browser's preflight cannot bring one.
_OPEN_PATHS = frozenset({"/health", "/v1/health"})


_CHALLENGE = (b"www-authenticate", b'Basic realm="racer_local", charset="UTF-8"')


class KeyCheck:
    """Refuses requests without the key, in either of the two headers that clients use."""

    def __init__(self, app: App, key: str, page: str | None = None) -> None:
        """Stand before ``app``; ``page`` is the path of a page for browsers, if there is one."""
        self._app = app
        self._page = page
        self._key = key.strip().encode("utf-8")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] not in ("http", "websocket") or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        is_page = self._is_page(scope)
        if any([hmac.compare_digest(key, self._key) for key in _keys(scope, is_page)]):
            await self._app(scope, receive, send)
            return
        message = "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'"
        if is_page:
            message = "the API key is missing or wrong; give it as the password, with any user name"
        challenge = (_CHALLENGE,) if is_page else ()
        await refuse(scope, send, 401, message, "invalid_api_key", challenge)

    def _is_page(self, scope: Scope) -> bool:
        page, path = self._page, scope["path"]
        return page is not None and (path in ("/", page) or path.startswith(f"{page}/"))

    def _is_open(self, scope: Scope) -> bool:
        return scope.get("method") == "OPTIONS" or scope["path"] in _OPEN_PATHS


def _keys(scope: Scope, is_page: bool) -> list[bytes]:
    keys = []
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            keys.append(bytes(value).strip())
        elif name == b"authorization" and value[:7].lower() == b"bearer ":
            keys.append(bytes(value[7:]).strip())
        elif is_page and name == b"authorization" and value[:6].lower() == b"basic ":
            keys.append(_password(bytes(value[6:])))
    return keys


def _password(encoded: bytes) -> bytes:
    try:
        return base64.b64decode(encoded.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
