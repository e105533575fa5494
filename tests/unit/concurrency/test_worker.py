from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from racer_local.concurrency.worker import Worker, wait_for


def test_calls_and_streams_run_on_one_thread_that_is_not_the_callers() -> None:
    def stream() -> Iterator[int]:
        for _ in range(3):
            yield threading.get_ident()

    with Worker() as worker:
        seen = {worker.call(threading.get_ident), *worker.iterate(stream(), lambda: None)}
    assert len(seen) == 1
    assert threading.get_ident() not in seen


def test_an_error_on_the_worker_reaches_the_caller_after_what_came_before_it() -> None:
    def stream() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    got = []
    with Worker() as worker, pytest.raises(ValueError, match="broken"):
        got.extend(worker.iterate(stream(), lambda: None))
    assert got == [1]
    with Worker() as worker, pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0)


def test_a_caller_that_leaves_cancels_the_stream_and_waits_for_its_end() -> None:
    is_cancelled = threading.Event()
    has_ended = threading.Event()

    def stream() -> Iterator[int]:
        try:
            while not is_cancelled.is_set():
                yield 1
        finally:
            has_ended.set()

    with Worker() as worker:
        items = worker.iterate(stream(), is_cancelled.set)
        assert next(items) == 1
        items.close()
        assert has_ended.is_set()
        assert worker.call(lambda: 5) == 5


def test_an_interrupted_call_is_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()

    def work() -> None:
        started.set()
        while True:
            worker.check()

    def interrupt(future: object) -> None:
        started.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr("racer_local.concurrency.worker.wait_for", interrupt)
    with Worker() as worker, pytest.raises(KeyboardInterrupt):
        worker.call(work)


class _EndsAsTheWaitDoes(Future[str]):
    """A call that ends between the end of a wait and the question whether it is done."""

    def result(self, timeout: float | None = None) -> str:
        if not self.done():
            self.set_result("done")
            raise TimeoutError
        return super().result(timeout)


def test_a_call_that_ends_as_the_wait_does_gives_its_result() -> None:
    assert wait_for(_EndsAsTheWaitDoes()) == "done"


def test_a_call_s_own_timeout_is_passed_on() -> None:
    future: Future[str] = Future()
    future.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        wait_for(future)
