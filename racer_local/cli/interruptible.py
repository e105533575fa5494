"""Iterate a stream on a worker thread, so that Ctrl-C works in the middle of a long decode."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["interruptible"]

_T = TypeVar("_T")

# Waiting without a limit cannot be interrupted on Windows.
_POLL_S = 0.2


def interruptible(stream: Iterator[_T], cancel: Callable[[], None]) -> Iterator[_T]:
    """Yield what ``stream`` yields, computed on another thread.

    A signal handler runs only between Python instructions of the main thread, and a prompt of
    a large model can keep llama.cpp busy for seconds. Here the main thread only waits: an
    exception in it, such as KeyboardInterrupt, calls ``cancel`` and waits for the stream's end.
    """
    items: queue.SimpleQueue[tuple[bool, _T | BaseException | None]] = queue.SimpleQueue()

    def pump() -> None:
        try:
            for item in stream:
                items.put((True, item))
            items.put((False, None))
        except BaseException as error:  # noqa: BLE001 - raised again on the main thread
            items.put((False, error))

    worker = threading.Thread(target=pump, name="racer-local-decode", daemon=True)
    worker.start()
    try:
        while True:
            try:
                is_item, value = items.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if is_item:
                yield value  # type: ignore[misc]  # items carry a _T
            elif value is None:
                return
            else:
                raise value  # type: ignore[misc]  # the end carries an exception
    finally:
        cancel()
        worker.join()
