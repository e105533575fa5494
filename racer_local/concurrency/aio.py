"""Calls and streams for asyncio: each has a thread that waits in the event loop's stead.

A thread of its own, not one of the loop's pool: calls that wait for their turn would fill the
pool, and the call they wait for could not go on. Layer: pure.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import TypeVar

from racer_local.concurrency.call_queue import Call

__all__ = ["CallHandle", "iterate_async", "run_async"]

_T = TypeVar("_T")

# Items that may be ready before somebody takes them.
_AHEAD = 4


class CallHandle:
    """Cancels one call, whether it is being served, waits, or has not begun."""

    def __init__(self) -> None:
        """Know no call yet."""
        self._lock = threading.Lock()
        self._call: Call | None = None
        self._is_cancelled = False

    def attach(self, call: Call) -> None:
        """Name the call; it is cancelled at once if ``cancel`` was called before."""
        with self._lock:
            self._call = call
            if self._is_cancelled:
                call.cancel()

    def cancel(self) -> None:
        """End the call soon; from any thread."""
        with self._lock:
            self._is_cancelled = True
            if self._call is not None:
                self._call.cancel()


def _post(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    # A loop that was closed meanwhile has nobody who waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


async def run_async(function: Callable[[], _T], handle: CallHandle) -> _T:
    """Return what ``function`` returns; if this is cancelled, so is its call."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def finish(result: _T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]  # there is one without an error
        else:
            done.set_exception(error)

    def work() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting task
            caught = error
            _post(loop, lambda: finish(None, caught))
        else:
            _post(loop, lambda: finish(result, None))

    threading.Thread(target=work, name="racer-local-call", daemon=True).start()
    try:
        return await done
    except asyncio.CancelledError:
        handle.cancel()
        raise


def _feed(items: Iterable[_T], take: Callable[[_T], bool]) -> None:
    """Hand items over until no more are wanted; a generator is closed then."""
    iterator = iter(items)
    try:
        for item in iterator:
            if not take(item):
                return
    finally:
        if isinstance(iterator, Generator):
            iterator.close()


async def iterate_async(
    make: Callable[[], Iterable[_T]], handle: CallHandle
) -> AsyncGenerator[_T, None]:
    """Yield what an iterable yields; left early, its call is cancelled and waited for."""
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[tuple[_T | None, bool]] = asyncio.Queue()
    over: asyncio.Future[None] = loop.create_future()
    errors: list[BaseException] = []
    slots = threading.Semaphore(_AHEAD)
    is_left = threading.Event()

    def end() -> None:
        items.put_nowait((None, True))
        if not over.done():
            over.set_result(None)

    def take(item: _T) -> bool:
        slots.acquire()
        _post(loop, lambda: items.put_nowait((item, False)))
        return not is_left.is_set()

    def pump() -> None:
        try:
            _feed(make(), take)
        except BaseException as error:  # noqa: BLE001 - raised again by the consumer
            errors.append(error)
        finally:
            _post(loop, end)

    threading.Thread(target=pump, name="racer-local-stream", daemon=True).start()
    try:
        while True:
            item, is_end = await items.get()
            if is_end:
                break
            slots.release()
            yield item  # type: ignore[misc]  # None is an item only at the end
        if errors:
            raise errors[0]
    finally:
        if not over.done():
            is_left.set()
            handle.cancel()
            slots.release()
            await asyncio.shield(over)
