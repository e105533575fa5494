"""What the compute thread hands to the event loop. Layer: pure (standard library only)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

__all__ = ["Inbox"]


class Inbox:
    """The items of one request, which the event loop takes as they come.

    The thread that puts them in is never held up by a slow reader: they wait in memory, as many
    as an answer has tokens at most.

    Attributes:
        is_over: whether no item follows.
    """

    def __init__(self) -> None:
        """Belong to the running event loop."""
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._items: list[Any] = []
        self._error: BaseException | None = None

    def put(self, *items: object) -> None:
        """Hand items over; from any thread. It wakes the loop once."""
        self._change(lambda: self._items.extend(items))

    def finish(self, error: BaseException | None = None) -> None:
        """Say that no item follows, and why; from any thread."""

        def end() -> None:
            self.is_over = True
            self._error = error

        self._change(end)

    def _change(self, change: Callable[[], None]) -> None:
        def do() -> None:
            change()
            self._changed.set()

        # A loop that was closed meanwhile has nobody who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(do)

    async def next_items(self) -> list[Any]:
        """Wait for items and return all that are there; an empty list is the end.

        Raises:
            BaseException: the error of ``finish``, after the items before it.
        """
        await self._changed.wait()
        items, self._items = self._items, []
        if not self.is_over:
            self._changed.clear()
        elif not items and self._error is not None:
            raise self._error
        return items
