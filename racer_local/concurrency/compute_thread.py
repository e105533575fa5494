"""The one thread of a process on which models compute.

OpenMP keeps a team of threads for every thread that ever computed, and lets them sleep at every
barrier where they outnumber the cores: measured on two cores, a second computing thread makes
decoding three times slower. Programs call from any thread, so all of their calls meet here, one
piece of work (a decode step, a chunk of a prompt) at a time. Two models take turns. The caller
only waits, so that Ctrl-C works in the middle of a long native call. Layer: pure (standard library
only).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Generic, Protocol, TypeVar

from racer_local.errors import ClosedError

__all__ = ["CallerThread", "ComputeThread", "Computer", "compute_thread", "wait_for"]

_T = TypeVar("_T")

_EXIT_WAIT_S = 30.0
# Waiting without a limit cannot be interrupted on Windows.
_POLL_S = 0.2


class Computer(Protocol):
    """Where a model computes."""

    @property
    def is_current(self) -> bool:
        """Whether the thread that asks is the one that computes."""

    def run(self, function: Callable[[], _T], on_interrupt: Callable[[], None] | None = None) -> _T:
        """Return what ``function`` returns there, or raise what it raises."""

    def begin(self, function: Callable[[], _T]) -> Future[_T]:
        """Have ``function`` called there."""

    def result(self, future: Future[_T], on_interrupt: Callable[[], None] | None = None) -> _T:
        """Return or raise what came of a call that was begun."""

    def stop_at_exit(self, owner: object) -> None:
        """Call ``owner.cancel()`` when the interpreter exits in the middle of its work."""


class _Job(Generic[_T]):
    """A call, and what came of it."""

    def __init__(self, function: Callable[[], _T]) -> None:
        self._function = function
        self.future: Future[_T] = Future()

    def __call__(self) -> None:
        try:
            self.future.set_result(self._function())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            self.future.set_exception(error)


class ComputeThread:
    """Runs calls one after the other on one thread, in the order they came in."""

    def __init__(self) -> None:
        """Start the thread. It does not keep the process alive."""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._stoppers: weakref.WeakSet[object] = weakref.WeakSet()
        self._thread = threading.Thread(target=self._work, name="racer-local-compute", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job()
            # A job holds what it computed on; do not keep that until the next one comes.
            del job

    def run(self, function: Callable[[], _T], on_interrupt: Callable[[], None] | None = None) -> _T:
        """Return what ``function`` returns on the thread, or raise what it raises.

        Args:
            function: the work.
            on_interrupt: called if the waiting caller is interrupted (Ctrl-C); it should make
                ``function`` end soon, for its end is waited for.

        Raises:
            ClosedError: the interpreter is shutting down.
        """
        if self.is_current:
            return function()
        future = self.begin(function)
        try:
            return self.result(future, on_interrupt)
        finally:
            # An exception refers to this frame; the frame must not refer to the exception.
            del future

    def begin(self, function: Callable[[], _T]) -> Future[_T]:
        """Have ``function`` called on the thread; ``result`` waits for it. From other threads.

        Raises:
            ClosedError: the interpreter is shutting down.
        """
        if self._is_closed:
            raise ClosedError("Python is shutting down; nothing can be computed any more")
        job = _Job(function)
        self._jobs.put(job)
        return job.future

    def result(self, future: Future[_T], on_interrupt: Callable[[], None] | None = None) -> _T:
        """Return or raise what came of a call; see ``run``."""
        try:
            return wait_for(future)
        except BaseException:
            if not future.done():
                if on_interrupt is not None:
                    on_interrupt()
                with contextlib.suppress(BaseException):
                    wait_for(future)
            raise
        finally:
            del future

    @property
    def is_current(self) -> bool:
        """Whether this is the thread that asks."""
        return threading.current_thread() is self._thread

    def stop_at_exit(self, owner: object) -> None:
        """Call ``owner.cancel()`` when the interpreter exits in the middle of its work."""
        self._stoppers.add(owner)

    def close(self) -> None:
        """End the thread: what it is doing is cancelled, and waited for."""
        self._is_closed = True
        for owner in list(self._stoppers):
            with contextlib.suppress(Exception):
                owner.cancel()  # type: ignore[attr-defined]  # see stop_at_exit
        self._jobs.put(None)
        self._thread.join(_EXIT_WAIT_S)


class CallerThread:
    """In place of the compute thread where one and the same thread opens a model and uses it.

    For programs that do nothing else meanwhile, such as benchmarks.
    """

    is_current = True

    def run(self, function: Callable[[], _T], on_interrupt: Callable[[], None] | None = None) -> _T:
        """Return what ``function`` returns."""
        return function()

    def begin(self, function: Callable[[], _T]) -> Future[_T]:
        """Call ``function`` at once."""
        job = _Job(function)
        job()
        return job.future

    def result(self, future: Future[_T], on_interrupt: Callable[[], None] | None = None) -> _T:
        """Return or raise what came of a call."""
        return future.result()

    def stop_at_exit(self, owner: object) -> None:
        """Do nothing: when this thread ends, nothing computes."""


def wait_for(future: Future[_T]) -> _T:
    """Return the result of a call on another thread, or raise what it raised; Ctrl-C gets in."""
    while True:
        try:
            return future.result(timeout=_POLL_S)
        except FutureTimeoutError:
            # Done: it failed with such an error itself, or ended just after the wait did.
            if future.done():
                return future.result()


_lock = threading.Lock()
_shared: tuple[int, ComputeThread] | None = None


def compute_thread() -> ComputeThread:
    """Return this process' compute thread; started when it is first asked for."""
    global _shared  # one per process is the point
    with _lock:
        # A forked child has the variable, but not the thread.
        if _shared is None or _shared[0] != os.getpid():
            # Exit handlers run last in, first out: ours has to come before the one that frees
            # what is still computed on, which is registered by the first finalizer.
            weakref.finalize(ComputeThread, lambda: None)
            thread = ComputeThread()
            atexit.register(thread.close)
            _shared = (os.getpid(), thread)
        return _shared[1]
