"""One thread that does all native computation, so that Ctrl-C works in the middle of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from racer_local.concurrency.closing import Closing

__all__ = ["Worker", "wait_for"]

_T = TypeVar("_T")

# Waiting without a limit cannot be interrupted on Windows.
_POLL_S = 0.2


class Worker(Closing):
    """Runs calls and streams on one thread of its own; the caller's thread only waits.

    A signal handler runs only between Python instructions of the main thread, and a prompt of a
    large model can keep llama.cpp busy for seconds. It has to be one thread for everything,
    loading included: OpenMP keeps a team of threads for each thread that ever computed, and with
    more of them than cores it lets them sleep at every barrier, which halves the speed.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="racer-local-decode")
        self._is_stopping = threading.Event()

    def check(self) -> None:
        """Raise KeyboardInterrupt on the worker if the caller was interrupted meanwhile."""
        if self._is_stopping.is_set():
            raise KeyboardInterrupt

    def submit(self, function: Callable[[], _T]) -> Future[_T]:
        """Queue a call for the thread; the caller does not wait."""
        return self._pool.submit(function)

    def call(self, function: Callable[[], _T]) -> _T:
        """Return what ``function`` returns; interrupted, ask it to stop (see ``check``)."""
        future = self._pool.submit(function)
        try:
            return wait_for(future)
        except BaseException:
            self._is_stopping.set()
            raise

    def iterate(self, stream: Iterator[_T], cancel: Callable[[], None]) -> Iterator[_T]:
        """Yield what ``stream`` yields.

        An exception in the caller, such as KeyboardInterrupt, calls ``cancel`` and waits for the
        stream's end.
        """
        items: queue.SimpleQueue[_T | _End] = queue.SimpleQueue()
        end = _End()

        def pump() -> None:
            try:
                for item in stream:
                    items.put(item)
            finally:
                items.put(end)

        future = self._pool.submit(pump)
        try:
            while True:
                try:
                    item = items.get(timeout=_POLL_S)
                except queue.Empty:
                    continue
                if isinstance(item, _End):
                    break
                yield item
        except BaseException:
            cancel()
            raise
        finally:
            wait_for(future)

    def close(self) -> None:
        """End the thread; waits for what it is doing."""
        self._pool.shutdown(wait=True)


class _End:
    """Says that a stream is over."""


def wait_for(future: Future[_T]) -> _T:
    """Return the result of a call on another thread, or raise what it raised; Ctrl-C gets in."""
    while True:
        try:
            return future.result(timeout=_POLL_S)
        except FutureTimeoutError:
            # Done: it failed with such an error itself, or ended just after the wait did.
            if future.done():
                return future.result()
