"""One session: opened once, called from any thread, left at any moment."""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from racer_local import RacerLlama
from racer_local.concurrency.call_queue import Call
from racer_local.config import DraftConfig, GenerationConfig, ModelConfig, SamplingConfig
from racer_local.decoding import opening
from racer_local.decoding.session import Session
from racer_local.errors import ClosedError, ConfigError, DecodeError, UnsupportedModelError

GREEDY = SamplingConfig(temperature=0)
PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
ENDLESS = GenerationConfig(max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def session(tiny_path: Callable[[str], Path]) -> Iterator[Session]:
    config = ModelConfig(path=tiny_path("llama"), n_ctx=256, max_nodes=8, n_threads=1)
    with Session(config, DraftConfig(mode="racer", budget=8)) as session:
        yield session


@pytest.fixture(scope="module")
def llama(tiny_path: Callable[[str], Path]) -> Iterator[RacerLlama]:
    llama = RacerLlama(str(tiny_path("llama")), n_ctx=256, n_threads=1, draft="racer", budget=8)
    yield llama
    llama.close()


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def answer_of(session: Session, n: int = 24) -> list[int]:
    limits = GenerationConfig(max_tokens=n, ignore_eos=True)
    return [e.token for e in session.stream(PROMPT, GREEDY, limits) if e.token is not None]


def test_many_threads_get_whole_answers_one_after_the_other(session: Session) -> None:
    expected = answer_of(session)
    results: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    threads = [threading.Thread(target=lambda: results.put(answer_of(session))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results.get() for _ in threads] == [expected] * 6


@pytest.mark.parametrize("n_read", [1, 2, 5, 11])
@pytest.mark.usefixtures("no_collector")
def test_an_answer_that_is_dropped_in_the_middle_gives_its_turn_back(
    session: Session, n_read: int
) -> None:
    expected = answer_of(session)
    answer = session.stream(PROMPT, GREEDY, ENDLESS)
    for _ in range(n_read):
        next(answer)
    del answer
    # Nobody collects cycles here: this waits for ever where one holds the turn.
    assert answer_of(session) == expected
    assert session.calls.active is None


@pytest.mark.usefixtures("no_collector")
def test_an_answer_that_was_never_begun_takes_no_turn(session: Session) -> None:
    answer = session.stream(PROMPT, GREEDY, ENDLESS)
    assert session.calls.active is None
    del answer
    assert len(answer_of(session)) == 24


@pytest.mark.parametrize("is_chunks", [True, False])
@pytest.mark.usefixtures("no_collector")
def test_a_dropped_stream_of_the_drop_in_class_gives_its_turn_back(
    llama: RacerLlama, is_chunks: bool
) -> None:
    options = {"max_tokens": 24, "temperature": 0}
    for _ in range(3):
        stream = iter(
            llama(PROMPT, stream=True, **options) if is_chunks else llama.generate(PROMPT, temp=0)
        )
        next(stream)
        del stream
    assert llama._require_session().calls.active is None
    assert llama(PROMPT, **options)["usage"]["completion_tokens"] > 0


def test_a_cancelled_answer_says_so_and_the_next_one_is_whole(session: Session) -> None:
    expected = answer_of(session)
    answer = session.stream(PROMPT, GREEDY, ENDLESS)
    next(answer)
    answer.cancel()
    assert [event.finish_reason for event in answer][-1] == "cancelled"
    waiting = session.stream(PROMPT, GREEDY, ENDLESS)
    waiting.cancel()
    assert [event.finish_reason for event in waiting] == ["cancelled"]
    assert answer_of(session) == expected


def test_a_stop_string_ends_an_answer_and_what_is_cached_is_what_was_emitted(
    session: Session,
) -> None:
    whole = session.stream(PROMPT, GREEDY, ENDLESS)
    text = "".join(event.text for event in whole)
    stop = text[len(text) // 2 :][:3]
    limits = GenerationConfig(max_tokens=24, ignore_eos=True, stop=(stop,))
    answer = session.stream(PROMPT, GREEDY, limits)
    assert "".join(event.text for event in answer) == text[: text.index(stop)]
    assert answer.finish_reason == "stop"
    kept = session.target.tokens
    assert kept == [*PROMPT, *answer.tokens][: len(kept)]


def test_work_in_steps_keeps_its_turn_and_lets_others_compute_in_between(
    session: Session,
) -> None:
    expected = answer_of(session)
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    tokens: list[int] = []
    seen: list[Call | None] = []

    def work(call: Call) -> Iterator[None]:
        for event in session.stream(PROMPT, GREEDY, ENDLESS, call=call):
            seen.append(session.calls.active)
            tokens.extend(() if event.token is None else (event.token,))
            yield

    call = session.serve(work, ended.put)
    # Comes between two steps, not behind them.
    assert session.compute.run(lambda: 3) == 3
    assert ended.get() is None
    assert tokens == expected
    assert set(seen) == {call}
    assert session.calls.active is None


def test_work_that_fails_or_is_cancelled_ends_once_and_leaves(session: Session) -> None:
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def fails(call: Call) -> Iterator[None]:
        yield
        raise ValueError("broken")

    def never(call: Call) -> Iterator[None]:
        raise AssertionError("it was cancelled before its turn")
        yield

    with session.calls.enter():
        first = session.serve(fails, ended.put)
        second = session.serve(never, ended.put)
        assert (session.calls.n_ahead(first), session.calls.n_ahead(second)) == (1, 2)
        second.cancel()
        assert ended.get() is None
    assert str(ended.get()) == "broken"
    assert ended.empty()
    assert session.calls.active is None


def test_after_close_every_way_in_says_so(tiny_path: Callable[[str], Path]) -> None:
    config = ModelConfig(path=tiny_path("llama"), n_ctx=64, max_nodes=0, n_threads=1)
    session = Session(config, DraftConfig(mode="off"))
    session.close()
    session.close()
    for way in (
        lambda: session.stream(PROMPT),
        lambda: session.use(DraftConfig(mode="off")),
        session.forget,
        lambda: session.serve(lambda call: iter(()), lambda error: None),
    ):
        with pytest.raises(ClosedError):
            way()


@pytest.mark.parametrize("fault", ["small trees", "exact refused", "probe"])
def test_a_session_that_cannot_be_opened_frees_the_context_before_the_model(
    tiny_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    freed: list[str] = []
    for name in ("llama_free", "llama_model_free"):
        real = getattr(llama_cpp, name)

        def free(handle: object, real: Any = real, name: str = name) -> None:
            freed.append(name)
            real(handle)

        monkeypatch.setattr(llama_cpp, name, free)
    config = ModelConfig(path=tiny_path("llama"), n_ctx=64, max_nodes=4, n_threads=1)
    draft, error = DraftConfig(mode="racer", budget=8), ConfigError
    if fault == "exact refused":
        config = replace(config, exact=True)
        refusal = UnsupportedModelError("not here")
        monkeypatch.setattr(opening, "find_exact_rows", raising(refusal))
        error = UnsupportedModelError
    elif fault == "probe":
        draft, error = DraftConfig(mode="auto", budget=4), DecodeError
        monkeypatch.setattr("racer_local.decoding.engine.probe_steps", raising(DecodeError(-3)))
    with pytest.raises(error):
        Session(config, draft)
    assert freed == ["llama_free", "llama_model_free"]


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*_arguments: object) -> Any:
        raise error

    return call


def test_the_drop_in_class_can_stand_in_place_of_upstream_s(
    llama: RacerLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = [{"role": "user", "content": "a b c"}]
    options = {"max_tokens": 8, "temperature": 0, "seed": 1}
    expected = llama.create_chat_completion(chat, **options)["choices"]
    monkeypatch.setattr(llama_cpp, "Llama", RacerLlama)
    monkeypatch.setattr(llama_cpp.llama, "Llama", RacerLlama)
    assert llama.create_chat_completion(chat, **options)["choices"] == expected
    events = list(llama.stream_events(chat, **options))
    assert events[-1].finish_reason is not None
    llama.overflow = "drop_oldest"
    try:
        assert llama.create_chat_completion(chat, **options)["choices"] == expected
    finally:
        llama.overflow = "error"


def test_rows_of_a_whole_batch_are_there_where_they_were_asked_for(
    tiny_path: Callable[[str], Path], llama: RacerLlama
) -> None:
    path = str(tiny_path("llama"))
    every = RacerLlama(path, n_ctx=256, n_threads=1, logits_all=True, draft="off")
    plain = llama_cpp.Llama(path, n_ctx=256, n_threads=1, logits_all=True, verbose=False)
    try:
        for model in (every, plain):
            model.reset()
            model.eval(PROMPT)
        for i in range(len(PROMPT)):
            assert every.sample(temp=0, idx=i) == plain.sample(temp=0, idx=i)
            assert int(every.scores[i].argmax()) == int(plain.scores[i].argmax())
        for idx in (-1, len(PROMPT)):
            with pytest.raises(ConfigError, match="has no logits"):
                every.sample(temp=0, idx=idx)
        llama.reset()
        llama.eval(PROMPT)
        assert llama.sample(temp=0, idx=len(PROMPT) - 1) == llama.sample(temp=0)
        with pytest.raises(ConfigError, match="logits_all"):
            llama.sample(temp=0, idx=0)
    finally:
        every.close()
        plain.close()


@pytest.mark.parametrize("n_by_hand", [1, 3, 64])
def test_who_decodes_by_hand_neither_ends_the_process_nor_spoils_the_next_answer(
    tiny_path: Callable[[str], Path], n_by_hand: int
) -> None:
    llama = RacerLlama(
        str(tiny_path("llama")),
        n_ctx=256,
        n_batch=64,
        n_threads=1,
        draft="racer",
        budget=8,
        logits_all=True,
    )
    expected = llama(PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"]
    batch = llama_cpp.llama_batch_init(64, 0, 1)
    try:
        n_past = llama.n_tokens
        batch.n_tokens = n_by_hand
        for i in range(n_by_hand):
            batch.token[i] = 5 + i % 3
            batch.pos[i] = n_past + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        assert llama_cpp.llama_decode(llama.ctx, batch) == 0
        assert llama_cpp.llama_get_logits_ith(llama.ctx, n_by_hand - 1)
        assert llama(PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"] == expected
        llama_cpp.llama_decode(llama.ctx, batch)
        llama.eval(PROMPT[:2])
    finally:
        llama_cpp.llama_batch_free(batch)
        llama.close()


def test_a_suffix_needs_a_model_that_can_fill_in(llama: RacerLlama) -> None:
    options = {"max_tokens": 4, "temperature": 0}
    with pytest.raises(ConfigError, match="filling in the middle"):
        llama("a b", suffix=" c", **options)
    n_tokens = llama("a b", **options)["usage"]["prompt_tokens"]
    assert llama("a b", suffix="", **options)["usage"]["prompt_tokens"] == n_tokens
