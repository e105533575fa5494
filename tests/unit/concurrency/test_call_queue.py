"""Calls are served one after the other, in their order."""

from __future__ import annotations

import contextvars
import threading
import time

import pytest

from racer_local.concurrency.call_queue import Call, CallQueue
from racer_local.errors import BusyError, ClosedError


def wait_until_waiting(calls: CallQueue, n: int) -> None:
    while len(calls) < n:
        time.sleep(0.001)


def test_first_come_first_served() -> None:
    calls = CallQueue()
    order: list[int] = []

    def work(i: int) -> None:
        with calls.enter():
            order.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(5)]
    with calls.enter():
        for i, thread in enumerate(threads):
            thread.start()
            wait_until_waiting(calls, i + 1)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    assert calls.active is None


def test_waiting_is_bounded_if_asked_for() -> None:
    calls = CallQueue()
    errors: list[str] = []

    def work() -> None:
        try:
            calls.enter(0.02)
        except BusyError as error:
            errors.append(str(error))

    with calls.enter():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(calls) == 0
    assert "0.02 s were not enough" in errors[0]


def test_waiting_for_oneself_is_an_error_and_no_deadlock() -> None:
    calls, others = CallQueue(), CallQueue()
    with calls.enter(), others.enter(), pytest.raises(BusyError, match="unfinished stream"):
        calls.enter()
    calls.enter().close()


def test_a_stream_begun_by_another_flow_on_this_thread_is_waited_for() -> None:
    calls = CallQueue()
    first = contextvars.copy_context().run(calls.enter)
    with pytest.raises(BusyError, match="not enough"):
        calls.enter(0.01)
    first.close()
    calls.enter().close()


def test_cancelling_reaches_the_call_whenever_it_comes() -> None:
    calls = CallQueue()
    assert not calls.cancel()
    told: list[str] = []
    with calls.enter() as call:
        assert calls.cancel()
        assert call.is_cancelled
        call.watch(lambda: told.append("late"))
        call.cancel()
        call.watch(None)
        call.cancel()
    assert told == ["late", "late"]


def test_a_waiting_call_can_be_cancelled() -> None:
    calls = CallQueue()
    begun: list[Call] = []
    errors: list[str] = []

    def work() -> None:
        try:
            calls.enter(None, begun.append)
        except BusyError as error:
            errors.append(str(error))

    with calls.enter():
        thread = threading.Thread(target=work)
        thread.start()
        wait_until_waiting(calls, 1)
        begun[0].cancel()
        thread.join()
    assert "cancelled while it waited" in errors[0]
    calls.enter().close()


def test_closing_refuses_new_and_waiting_calls() -> None:
    calls = CallQueue()
    errors: list[type[Exception]] = []

    def work() -> None:
        try:
            calls.enter()
        except ClosedError as error:
            errors.append(type(error))

    with calls.enter():
        thread = threading.Thread(target=work)
        thread.start()
        wait_until_waiting(calls, 1)
        calls.close()
        thread.join()
    assert errors == [ClosedError]
    with pytest.raises(ClosedError):
        calls.enter()
