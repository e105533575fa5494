"""Serve an app until Ctrl-C. Needs uvicorn (extra ``ui``, ``server``)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator

import uvicorn
from uvicorn.server import HANDLED_SIGNALS

from racer_local.errors import ConfigError, RacerError
from racer_local.web.guard import App

__all__ = ["bind", "serve", "url_of"]

# Open streams end by themselves when their answers are cancelled; what does not, is cut.
_GRACE_S = 1
# Event loop and pages have to hand Python back to the thread that decodes at once: it asks for it
# some twenty times in a step, and each time would wait for Python's usual 5 ms. Measured on two
# cores (`python -m racer_local.research.bench_server --rounds 2 --draft off`): answers over HTTP
# come at 0.94 and 0.98 of the engine's speed with this, and at 0.91 without.
_SWITCH_INTERVAL_S = 0.0002
_BACKLOG = 128


def bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket; port 0 takes any free one.

    Raises:
        ConfigError: the address is not one of this machine, or the port is out of range.
        RacerError: the port is in use, or not allowed.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"port is {port}; it must be from 0 (any free one) to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"cannot serve on {host!r}: no such address") from error
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name != "nt":
            # On Windows this would let two programs share a port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise RacerError(
                f"port {port} is in use, perhaps by another racer-local; stop that program or "
                "choose another port (--port; 0 takes any free one)"
            ) from error
        raise RacerError(f"cannot serve on {host}:{port}: {error.strerror}") from error
    except OverflowError as error:
        listener.close()
        raise ConfigError(f"cannot serve on port {port}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address to open in a browser on this machine."""
    name, port = listener.getsockname()[:2]
    if name in ("0.0.0.0", "::"):
        name = "localhost"
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def serve(
    app: App,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None] | None = None,
    on_stop: Callable[[], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM; returns normally then.

    Args:
        app: answers.
        listener: from ``bind``; closed at the end.
        on_ready: called when requests are answered.
        on_stop: called at the signal; has to make running answers end soon.
        should_stop: asked several times a second; True ends it as a signal does.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    logging.getLogger("uvicorn.error").addFilter(_not_our_own_cutting)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=_GRACE_S,
    )
    with listener:
        asyncio.run(_Server(config, on_ready, on_stop, should_stop).serve(sockets=[listener]))


class _Server(uvicorn.Server):
    """A server that tells when it is ready and when it is asked to stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_ready: Callable[[], None] | None,
        on_stop: Callable[[], None] | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        super().__init__(config)
        self._should_stop = should_stop
        self._on_ready = on_ready
        self._on_stop = on_stop

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn raises the signal again after it has shut down, which would end the process
        # before the model is closed.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._on_ready is not None:
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        is_over = self._should_stop is not None and self._should_stop()
        return await super().on_tick(counter) or is_over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._on_stop is not None:
            await asyncio.to_thread(self._on_stop)
        await super().shutdown(sockets)


def _not_our_own_cutting(record: logging.LogRecord) -> bool:
    """Keep quiet about streams that were still open at the end; the user asked for it."""
    cut = "timeout graceful shutdown exceeded" in record.getMessage()
    cancelled = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return not (cut or cancelled)
