"""Runs one request: queue, disconnects, whole and streamed answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from racer_local.backend.model import LlamaModel
from racer_local.concurrency.call_queue import Call
from racer_local.decoding.session import Session
from racer_local.server.event_stream import answer_steps
from racer_local.server.faults import ApiError, api_error_of
from racer_local.server.host import ModelHost, QueueFullError
from racer_local.server.inbox import Inbox
from racer_local.server.limits import ServeConfig
from racer_local.server.metrics import Metrics
from racer_local.server.replies import DONE, Reply, sse
from racer_local.server.request_mapping import Question

__all__ = ["ApiService"]

logger = logging.getLogger(__name__)

# What nobody reads: the client has gone. The number is nginx's.
_CLIENT_GONE = 499
# Done a step at a time; hands what comes of it to the function that it is given.
_Work: TypeAlias = Callable[[Session, Call, Callable[..., None]], Iterator[None]]


class _Pending(NamedTuple):
    """A request's call, and what has come of it."""

    call: Call
    inbox: Inbox


class ApiService:
    """What the routes need.

    Attributes:
        host: the model.
        config: the limits.
        metrics: the counters.
    """

    def __init__(self, host: ModelHost, config: ServeConfig) -> None:
        """Serve a host's model."""
        self.host = host
        self.config = config
        self.metrics = Metrics(host)

    def require_ready(self) -> None:
        """Raise ``ApiError`` where no request can be taken now."""
        if self.host.state == "loading":
            raise ApiError(503, "Loading model", code="loading")
        if self.host.state in ("failed", "stopping"):
            raise ApiError(503, "the server is stopping", code="unavailable")

    def _submit(self, work: _Work) -> _Pending:
        """Put work into the queue.

        Raises:
            ApiError: it cannot be taken now.
        """
        self.require_ready()
        inbox = Inbox()
        try:
            call = self.host.submit(
                lambda session, call: work(session, call, inbox.put), inbox.finish
            )
        except QueueFullError:
            message = f"{len(self.host.calls)} requests wait already; try again later"
            raise ApiError(503, message, code="queue_full") from None
        return _Pending(call, inbox)

    def _unanswered(self) -> ApiError:
        """Say why a request was given up before it was begun."""
        if self.host.calls.is_closed:
            return ApiError(503, "the server is stopping", code="unavailable")
        return ApiError(_CLIENT_GONE, "the client has gone", code="cancelled")

    async def compute(self, request: Request, work: Callable[[LlamaModel], Any]) -> Any:
        """Return what ``work`` returns in its turn, for which the model is loaded."""

        def steps(session: Session, call: Call, put: Callable[..., None]) -> Iterator[None]:
            put(work(session.model))
            yield

        pending = self._submit(steps)
        async with self._watched(request, pending):
            items = await pending.inbox.next_items()
        if not items:
            raise self._unanswered()
        return items[0]

    async def answer(
        self,
        request: Request,
        ask: Callable[[Session], Iterator[Question]],
        reply: Reply,
        *,
        stream: bool,
        wants_usage: bool,
    ) -> Response:
        """Generate and reply; errors before the first token are answers of their own."""
        began = monotonic()

        def steps(session: Session, call: Call, put: Callable[..., None]) -> Iterator[None]:
            for index, question in enumerate(ask(session)):
                yield from answer_steps(session, call, index, question, put, self.metrics.generated)

        pending = self._submit(steps)
        inbox = pending.inbox
        watch = self._watched(request, pending)
        await watch.__aenter__()
        try:
            items = await inbox.next_items()
            if pending.call.waited_s is not None:
                self.metrics.waited(pending.call.waited_s)
            self.metrics.first_token(monotonic() - began)
            if stream and items:
                parts = self._parts(inbox, items, reply, wants_usage=wants_usage)

                async def close() -> None:
                    self.metrics.finished(monotonic() - began)
                    await watch.__aexit__(None, None, None)

                return _EventStream(parts, close)
            more = items
            while more := await inbox.next_items():
                items += more
        except BaseException:
            await watch.__aexit__(None, None, None)
            raise
        await watch.__aexit__(None, None, None)
        self.metrics.finished(monotonic() - began)
        if not items:
            raise self._unanswered()
        return JSONResponse(reply.whole(items))

    async def _parts(
        self, inbox: Inbox, items: list[Any], reply: Reply, *, wants_usage: bool
    ) -> AsyncIterator[bytes]:
        try:
            while items:
                yield b"".join(sse(chunk) for chunk in reply.chunks(items))
                items = await inbox.next_items()
        except Exception as error:  # noqa: BLE001 - told the client
            yield sse(api_error_of(error).body)
            return
        if wants_usage:
            yield sse(reply.usage_chunk())
        yield DONE

    @contextlib.asynccontextmanager
    async def _watched(self, request: Request, pending: _Pending) -> AsyncIterator[None]:
        """Cancel the call when the client goes, and when nobody waits for it any more."""

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            if not pending.inbox.is_over:
                self.metrics.cancelled()
                pending.call.cancel()

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            pending.call.cancel()


class _EventStream(Response):
    """A stream of server-sent events."""

    media_type = "text/event-stream"

    def __init__(self, parts: AsyncIterator[bytes], close: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        self._parts = parts
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            async for part in self._parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            # The client has gone in the middle of it.
            pass
        finally:
            await self._close()
