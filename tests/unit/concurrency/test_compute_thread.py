"""One thread computes for all."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from racer_local.concurrency.compute_thread import (
    CallerThread,
    ComputeThread,
    compute_thread,
    wait_for,
)
from racer_local.errors import ClosedError


def test_everything_runs_on_one_thread() -> None:
    compute = ComputeThread()
    seen: list[threading.Thread] = []

    def work() -> None:
        seen.append(compute.run(threading.current_thread))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1
    assert seen[0] not in threads
    compute.close()


def test_errors_reach_the_caller_and_work_inside_work_runs_at_once() -> None:
    compute = ComputeThread()
    with pytest.raises(ZeroDivisionError):
        compute.run(lambda: 1 / 0)
    assert compute.run(lambda: compute.run(lambda: 3)) == 3
    compute.close()


def test_after_the_end_it_says_so_and_what_ran_was_cancelled() -> None:
    compute = ComputeThread()
    started, stop = threading.Event(), threading.Event()

    class Owner:
        def cancel(self) -> None:
            stop.set()

    owner = Owner()
    compute.stop_at_exit(owner)

    def work() -> None:
        started.set()
        stop.wait()

    thread = threading.Thread(target=lambda: compute.run(work))
    thread.start()
    started.wait()
    compute.close()
    thread.join()
    with pytest.raises(ClosedError, match="shutting down"):
        compute.run(lambda: None)


def test_an_interrupted_caller_stops_the_work_and_waits_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import racer_local.concurrency.compute_thread

    compute = ComputeThread()
    stop = threading.Event()
    ended: list[bool] = []
    real = racer_local.concurrency.compute_thread.wait_for
    answers = iter([KeyboardInterrupt])

    def wait(future: object) -> object:
        for error in answers:
            raise error
        return real(future)  # type: ignore[arg-type]

    def work() -> None:
        stop.wait()
        ended.append(True)

    monkeypatch.setattr(racer_local.concurrency.compute_thread, "wait_for", wait)
    with pytest.raises(KeyboardInterrupt):
        compute.run(work, stop.set)
    assert ended == [True]
    compute.close()


def test_there_is_one_for_the_process() -> None:
    assert compute_thread() is compute_thread()


def test_in_place_of_it_the_caller_s_own_thread_can_do_everything() -> None:
    caller = CallerThread()
    assert caller.run(threading.current_thread) is threading.current_thread()
    assert caller.result(caller.begin(threading.current_thread)) is threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        caller.result(caller.begin(lambda: 1 / 0))


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
