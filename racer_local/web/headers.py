"""ASGI middleware that tells the browser what a page of ours may do. Layer: pure ASGI."""

from __future__ import annotations

from racer_local.web.guard import App, Message, Receive, Scope, Send

__all__ = ["PAGE_POLICY", "SecurityHeaders"]

# Everything from this server and nothing from elsewhere: an image in an answer cannot report that
# it was looked at. Gradio's front end needs inline scripts and styles, and Function() for plots.
PAGE_POLICY = (
    "default-src 'self'; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; "
    "font-src 'self' data:; "
    "connect-src 'self'; "
    "worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class SecurityHeaders:
    """Adds the headers to every response."""

    def __init__(self, app: App, policy: str = PAGE_POLICY) -> None:
        """Stand before ``app``; ``policy`` is the content security policy."""
        self._app = app
        self._headers = [*_ALWAYS, (b"content-security-policy", policy.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and complete its response."""

        async def completed(event: Message) -> None:
            if event["type"] == "http.response.start":
                event["headers"] = [*event.get("headers", ()), *self._headers]
            await send(event)

        await self._app(scope, receive, completed if scope["type"] == "http" else send)
