"""The host of a served model: loading, turns, unloading and the end, with a stand-in for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from racer_local.concurrency.call_queue import Call, CallQueue
from racer_local.errors import ClosedError, ModelLoadError
from racer_local.server.host import ModelHost, ModelState, QueueFullError

WAIT_S = 30


class FakeSession:
    """Knows only whether it was freed."""

    def __init__(self) -> None:
        self.model = object()
        self.is_open = True

    def leave(self) -> None:
        self.is_open = False


class Opened:
    """A host, what it opened, and the states it went through."""

    def __init__(self, error: Exception | None = None, **options: Any) -> None:
        self.sessions: list[FakeSession] = []
        self.states: list[ModelState] = []
        self.changed = threading.Condition()
        self.error = error
        usual: dict[str, Any] = {"name": "m", "n_ctx": 1, "n_ctx_train": 1, "max_queue": 1}
        self.host = ModelHost(self.open, on_state=self.note, **{**usual, **options})
        self.host.start()

    def open(self, calls: CallQueue) -> Any:
        if self.error is not None:
            raise self.error
        self.sessions.append(FakeSession())
        return self.sessions[-1]

    def note(self, state: ModelState) -> None:
        with self.changed:
            self.states.append(state)
            self.changed.notify_all()

    def wait_for(self, n_states: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.states) >= n_states, WAIT_S)

    def close(self) -> None:
        self.host.stop()
        self.host.wait_closed(WAIT_S)


@pytest.fixture
def make() -> Iterator[Callable[..., Opened]]:
    made: list[Opened] = []

    def build(*args: Any, **options: Any) -> Opened:
        made.append(Opened(*args, **options))
        return made[-1]

    yield build
    for each in made:
        each.close()


def hold(host: ModelHost) -> tuple[Call, threading.Event]:
    """Join the queue; the event is set when the turn has come, or never will."""
    turn = threading.Event()
    return host.join(lambda _: turn.set()), turn


def test_work_runs_a_step_at_a_time_with_the_loaded_model(make: Callable[..., Opened]) -> None:
    opened = make()
    opened.wait_for(1)
    seen: list[Any] = []
    over = threading.Event()

    def work(session: Any, call: Call) -> Iterator[None]:
        for i in range(3):
            seen.append((session, call.is_served, i))
            yield

    def end(error: BaseException | None) -> None:
        seen.append(error)
        over.set()

    opened.host.submit(work, end)
    assert over.wait(WAIT_S)
    assert seen == [(opened.sessions[0], True, i) for i in range(3)] + [None]
    assert opened.states == ["ready"]


def test_a_full_queue_refuses_and_one_that_gives_up_makes_room(
    make: Callable[..., Opened],
) -> None:
    opened = make(max_queue=1)
    opened.wait_for(1)
    assert opened.host.calls.wait_until_idle(WAIT_S)
    first, has_begun = hold(opened.host)
    assert has_begun.is_set()
    second, is_told = hold(opened.host)
    assert (first.is_served, opened.host.calls.n_ahead(second)) == (True, 1)
    with pytest.raises(QueueFullError):
        hold(opened.host)
    second.cancel()
    assert is_told.is_set()
    assert not second.is_served
    third, _ = hold(opened.host)
    first.close()
    assert third.is_served
    third.close()


def test_a_client_gone_in_the_middle_of_a_step_lets_the_next_one_in(
    make: Callable[..., Opened],
) -> None:
    opened = make()
    opened.wait_for(1)
    in_step, gone, over = threading.Event(), threading.Event(), threading.Event()

    def work(session: Any, call: Call) -> Iterator[None]:
        while not call.is_cancelled:
            in_step.set()
            gone.wait(WAIT_S)
            yield

    call = opened.host.submit(work, lambda _: over.set())
    assert in_step.wait(WAIT_S)
    following, turn = hold(opened.host)
    call.cancel()
    gone.set()
    assert over.wait(WAIT_S)
    assert turn.wait(WAIT_S)
    assert following.is_served
    following.close()


def test_an_idle_model_is_unloaded_and_loaded_on_demand(make: Callable[..., Opened]) -> None:
    opened = make(idle_unload_s=0.01)
    opened.wait_for(2)
    assert opened.states == ["ready", "unloaded"]
    assert not opened.sessions[0].is_open
    call, turn = hold(opened.host)
    assert turn.wait(WAIT_S)
    with opened.host.vocabulary() as model:
        assert model is None
    session: Any = opened.host.session()
    assert session.is_open
    call.close()
    opened.wait_for(4)
    assert opened.states == ["ready", "unloaded"] * 2
    assert not session.is_open


def test_a_model_that_cannot_be_loaded_is_told(make: Callable[..., Opened]) -> None:
    opened = make(ModelLoadError("broken"))
    opened.wait_for(1)
    assert (opened.host.state, opened.states) == ("failed", ["failed"])
    assert isinstance(opened.host.error, ModelLoadError)
    with pytest.raises(ClosedError):
        hold(opened.host)


def test_the_end_tells_those_who_wait_and_frees_the_model_after_the_running_call(
    make: Callable[..., Opened],
) -> None:
    opened = make()
    opened.wait_for(1)
    assert opened.host.calls.wait_until_idle(WAIT_S)
    running, _ = hold(opened.host)
    waiting, is_told = hold(opened.host)
    opened.host.stop()
    assert is_told.is_set()
    assert (running.is_cancelled, waiting.is_served) == (True, False)
    opened.host.wait_closed(0.01)
    assert opened.sessions[0].is_open
    running.close()
    opened.host.wait_closed(WAIT_S)
    assert not opened.sessions[0].is_open
    assert opened.host.state == "stopping"
