"""A generation holds its engine until it ends, is closed or is dropped, and not a moment longer."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from fakes import ScriptedTarget, TreeDrafter, chain

from racer_local.config import DraftConfig, GenerationConfig, SamplingConfig
from racer_local.decoding.engine import Engine, Generation
from racer_local.errors import BusyError

GREEDY = SamplingConfig(temperature=0)
PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
OFF = DraftConfig(mode="off")
RACER = DraftConfig(mode="racer", budget=8)
LIMITS = GenerationConfig(max_tokens=24)


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def run(engine: Engine) -> list[int]:
    return [event.token for event in engine.generate(PROMPT, GREEDY, LIMITS)]


def on_thread(function: Callable[[], object]) -> object:
    """Run it on another thread; an error or a thread that does not end fails the test."""
    found: list[object] = []

    def work() -> None:
        try:
            found.append(function())
        except BaseException as error:  # noqa: BLE001 - told to the test
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert found, "it waits for ever"
    return found[0]


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("draft", [OFF, RACER])
def test_the_last_reference_ends_it_at_once(n: int, draft: DraftConfig, no_gc: None) -> None:
    target = ScriptedTarget()
    engine = Engine(target, draft)
    generation = engine.generate(PROMPT, GREEDY, LIMITS)
    for _ in range(n):
        next(generation)
    del generation
    assert target.n_samplers_open == 0
    expected = on_thread(lambda: run(Engine(ScriptedTarget(), OFF)))
    assert on_thread(lambda: run(engine)) == expected


def test_another_thread_may_drop_it(no_gc: None) -> None:
    engine = Engine(ScriptedTarget(), RACER)
    held = [engine.generate(PROMPT, GREEDY, LIMITS)]
    next(held[0])
    on_thread(held.clear)
    assert len(run(engine)) == 24


@pytest.mark.parametrize("moment", ["sampler", "prefill", "step"])
def test_an_error_ends_it_at_once(moment: str, no_gc: None) -> None:
    target = ScriptedTarget()
    engine = Engine(target, OFF)

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        for _ in engine.generate(
            PROMPT,
            GREEDY,
            LIMITS,
            make_sampler=fail if moment == "sampler" else None,  # type: ignore[arg-type]
            on_prefill=fail if moment == "prefill" else None,
            on_step=fail if moment == "step" else None,
        ):
            pass
    assert target.n_samplers_open == 0
    assert len(on_thread(lambda: run(engine))) == 24  # type: ignore[arg-type]


def entries(engine: Engine) -> dict[str, Callable[[], object]]:
    def enter(block: AbstractContextManager[None]) -> None:
        with block:
            pass

    return {
        "use": lambda: engine.use(RACER),
        "use auto": lambda: engine.use(DraftConfig(mode="auto", budget=8)),
        "forget": engine.forget,
        "drafting": lambda: enter(engine.drafting(RACER)),
        "drafting as before": lambda: enter(engine.drafting(OFF)),
        "aside": lambda: enter(engine.aside(OFF)),
        "generate": lambda: run(engine),
    }


ENTRIES = list(entries(Engine(ScriptedTarget(), OFF)))


@pytest.mark.parametrize("name", ENTRIES)
def test_nothing_touches_the_target_of_an_unfinished_generation(name: str) -> None:
    """Neither on its thread, which would wait for itself, nor on another one, which waits."""
    target = ScriptedTarget()
    engine = Engine(target, OFF)
    expected = run(Engine(ScriptedTarget(), OFF))
    generation = engine.generate(PROMPT, GREEDY, LIMITS)
    tokens = [next(generation).token for _ in range(3)]
    with pytest.raises(BusyError, match="unfinished"):
        entries(engine)[name]()
    n_decodes = target.n_decodes
    thread = threading.Thread(target=entries(engine)[name], daemon=True)
    thread.start()
    # It cannot come further than the lock, however long this takes.
    thread.join(0.05)
    assert thread.is_alive()
    assert target.n_decodes == n_decodes
    assert tokens + [event.token for event in generation] == expected
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("name", ["drafting", "aside"])
def test_a_block_keeps_other_threads_out_until_it_ends(name: str) -> None:
    engine = Engine(ScriptedTarget(), OFF)
    block = engine.drafting(RACER) if name == "drafting" else engine.aside(RACER)
    answers: list[list[int]] = []
    thread = threading.Thread(target=lambda: answers.append(run(engine)), daemon=True)
    with block:
        engine.use(OFF)
        engine.forget()
        thread.start()
        expected = run(engine)
        thread.join(0.05)
        assert not answers
        unfinished = engine.generate(PROMPT, GREEDY, LIMITS)
        next(unfinished)
    thread.join(30)
    assert answers == [expected]
    assert list(unfinished) == []


def test_a_callback_cannot_ask_for_more_but_may_close() -> None:
    engine = Engine(ScriptedTarget(), OFF)
    held: list[Generation] = []
    found: list[object] = []

    def on_step(_: object) -> None:
        try:
            next(held[0])
        except BusyError as error:
            found.append(error)
        held[0].close()

    held.append(engine.generate(PROMPT, GREEDY, LIMITS, on_step=on_step))
    assert len(list(held[0])) == 1
    assert held[0].finish_reason == "cancelled"
    assert len(found) == 1
    assert len(run(engine)) == 24


def test_closing_from_another_thread_stops_the_step_that_is_under_way() -> None:
    target = ScriptedTarget()
    engine = Engine(target, OFF)
    is_in_step, is_stopped = threading.Event(), threading.Event()

    def on_decode() -> None:
        if target.n_decodes == 3:
            is_in_step.set()
            assert is_stopped.wait(30)

    stop = target.stop
    target.stop = lambda: (stop(), is_stopped.set())  # type: ignore[method-assign, func-returns-value]
    target.on_decode = on_decode
    generation = engine.generate(PROMPT, GREEDY, LIMITS)
    tokens: list[int] = []
    thread = threading.Thread(target=lambda: tokens.extend(e.token for e in generation))
    thread.start()
    assert is_in_step.wait(30)
    generation.close()
    assert target.n_samplers_open == 0
    thread.join(30)
    assert tokens == run(engine)[: len(tokens)]


def test_a_drafter_of_the_callers_may_hold_the_engine(no_gc: None) -> None:
    engine = Engine(ScriptedTarget(), OFF)
    drafter = TreeDrafter(lambda text, room: chain(text[-1], []))
    drafter.engine = engine  # type: ignore[attr-defined]
    engine.use(drafter, 4)
    generation = engine.generate(PROMPT, GREEDY, LIMITS)
    next(generation)
    del generation
    assert len(on_thread(lambda: run(engine))) == 24  # type: ignore[arg-type]
