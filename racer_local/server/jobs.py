"""Requests that need the model: a bounded queue, and what each hands back to its event loop.

The items of a job are never held up by a slow reader: the model goes on, and they wait in memory,
as many as an answer has tokens at most. Layer: pure (standard library only).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from racer_local.concurrency.aio import CallHandle

__all__ = ["Job", "JobQueue", "QueueFullError", "Work"]


class QueueFullError(Exception):
    """As many requests wait as may."""


class Work(Protocol):
    """What waits for the model, and is then done on its thread."""

    def run(self) -> None:
        """Do it; never raises."""

    def finish(self) -> None:
        """Be told that it will not be done."""

    def cancel(self) -> None:
        """Be told to end soon; from any thread."""


class Job:
    """One request: work for the model's thread, items for the event loop.

    Attributes:
        handle: what the model's call is cancelled by.
        is_cancelled: nobody wants the answer any more.
        waited_s: seconds from submission to its turn; None before that.
    """

    def __init__(self, work: Callable[[Job], None]) -> None:
        """Make a job of the running event loop; ``work`` puts items into it."""
        self.handle = CallHandle()
        self.is_cancelled = False
        self.waited_s: float | None = None
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._items: deque[Any] = deque()
        self._is_over = False
        self._error: BaseException | None = None
        self._is_awake = False
        self._wake = asyncio.Event()
        self._made = monotonic()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is computed for it."""
        return self._is_over

    def put(self, item: object) -> None:
        """Hand an item over; from the model's thread."""
        with self._lock:
            self._items.append(item)
            must_call = not self._is_awake
            self._is_awake = True
        if must_call:
            self._call_loop()

    def _call_loop(self) -> None:
        # A loop that was closed meanwhile has nobody who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)

    def run(self) -> None:
        """Do the work; on the model's thread."""
        self.waited_s = monotonic() - self._made
        try:
            if not self.is_cancelled:
                self._work(self)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self.finish(error)
        else:
            self.finish()

    def finish(self, error: BaseException | None = None) -> None:
        """Say that no item follows."""
        with self._lock:
            self._is_over = True
            self._error = self._error or error
        self._call_loop()

    def cancel(self) -> None:
        """End it soon; from any thread."""
        self.is_cancelled = True
        self.handle.cancel()

    async def next_items(self) -> list[Any]:
        """Wait for items and return all that are there; an empty list is the end.

        Raises:
            BaseException: what the work raised, after the items before it.
        """
        while True:
            with self._lock:
                items = list(self._items)
                self._items.clear()
                self._is_awake = False
                self._wake.clear()
                is_over, error = self._is_over, self._error
            if items:
                return items
            if is_over:
                if error is not None:
                    raise error
                return []
            await self._wake.wait()


class JobQueue:
    """First come, first served; one job at a time is out of it."""

    def __init__(self, limit: int) -> None:
        """Let at most ``limit`` jobs wait behind the one that is served."""
        self._limit = limit
        self._changed = threading.Condition()
        self._jobs: deque[Work] = deque()
        self._active: Work | None = None
        self._is_closed = False

    def __len__(self) -> int:
        """Count the waiting jobs."""
        return len(self._jobs)

    @property
    def is_serving(self) -> bool:
        """Whether a job is being served."""
        return self._active is not None

    def n_ahead(self, job: Work) -> int:
        """Count those that are served before a job; 0 also where it is not waiting."""
        with self._changed:
            if job not in self._jobs:
                return 0
            return self._jobs.index(job) + (self._active is not None)

    def add(self, job: Work) -> None:
        """Put a job at the end.

        Raises:
            QueueFullError: too many wait, or the queue is closed.
        """
        with self._changed:
            is_busy = self._active is not None or len(self._jobs) > 0
            if self._is_closed or (is_busy and len(self._jobs) >= self._limit):
                raise QueueFullError
            self._jobs.append(job)
            self._changed.notify()

    def drop(self, job: Work) -> None:
        """Cancel a job; one that waits leaves its place at once."""
        job.cancel()
        with self._changed, contextlib.suppress(ValueError):
            self._jobs.remove(job)
            job.finish()

    def take(self, timeout_s: float | None) -> Work | None:
        """Wait for the next job; None after the time, or when the queue was closed."""
        with self._changed:
            self._active = None
            self._changed.wait_for(lambda: self._jobs or self._is_closed, timeout_s)
            if not self._jobs:
                return None
            self._active = self._jobs.popleft()
            return self._active

    @property
    def is_closed(self) -> bool:
        """Whether no more jobs are taken."""
        return self._is_closed

    def close(self) -> None:
        """Take no more jobs, and cancel those that are there."""
        with self._changed:
            self._is_closed = True
            jobs = [*self._jobs, *([self._active] if self._active else [])]
            self._changed.notify_all()
        for job in jobs:
            job.cancel()
