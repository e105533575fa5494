"""What applications do to a model: threads, cancelling, dropped streams, asyncio, odd ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from inputs import CATS, EMOJI, OK_CHAT, STEP, STEP_ANSWER

from racer_local import RacerDraftModel, RacerLlama
from racer_local.errors import (
    BusyError,
    ClosedError,
    ConfigError,
    ContextFullError,
    ModelLoadError,
)

LONG = "All work and no play makes Jack a dull boy. " * 30


@pytest.fixture(scope="module")
def opened(smol_path: Path) -> Iterator[RacerLlama]:
    with_close = RacerLlama(str(smol_path), n_ctx=512, draft="racer", budget=12)
    yield with_close
    with_close.close()


@pytest.fixture
def llama(opened: RacerLlama) -> RacerLlama:
    opened.reset()
    opened.overflow = "error"
    opened.wait_timeout_s = None
    opened.on_prefill = None
    opened.set_seed(7)
    return opened


def text_of(answer: Any) -> str:
    text: str = answer["choices"][0]["text"]
    return text


def ask(llama: RacerLlama, prompt: str = STEP, n: int = 32) -> str:
    return text_of(llama(prompt, max_tokens=n, temperature=0))


def one_sequence_state(llama: RacerLlama) -> set[tuple[int, int]]:
    assert llama._session is not None
    return set(llama._session.target.positions())


# --- histories that processors see, ends, seeds ---


def test_a_logits_processor_sees_every_token_once_and_in_order(llama: RacerLlama) -> None:
    prompt = "One two three\nOne two three\nOne two"
    seen: list[tuple[int, int]] = []

    def record(ids: Any, scores: Any) -> Any:
        seen.append((len(ids), int(ids[-1])))
        return scores

    list(llama(prompt, max_tokens=8, temperature=0, logits_processor=[record], stream=True))
    n_prompt = len(llama.tokenize(prompt.encode()))
    tokens = list(llama.input_ids[: llama.n_tokens])
    assert [n for n, _ in seen[:8]] == list(range(n_prompt, n_prompt + 8))
    assert [last for _, last in seen[:8]] == tokens[n_prompt - 1 : n_prompt + 7]


def test_a_processor_that_bans_the_last_token_leaves_no_repetition(llama: RacerLlama) -> None:
    def ban(ids: Any, scores: Any) -> Any:
        scores[ids[-1]] = -float("inf")
        return scores

    tokens = []
    for event in llama.stream_events("a a a a a a", max_tokens=20, logits_processor=[ban]):
        if event.token is not None:
            tokens.append(event.token)
    assert all(a != b for a, b in itertools.pairwise(tokens))


@pytest.mark.parametrize("at", [1, 3])
def test_a_processor_that_fails_ends_its_call_and_no_other(llama: RacerLlama, at: int) -> None:
    calls = 0

    def fail(ids: Any, scores: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise ZeroDivisionError("the processor's own")
        return scores

    with pytest.raises(ZeroDivisionError, match="own"):
        llama(STEP, max_tokens=16, temperature=0, logits_processor=[fail])
    assert ask(llama) == STEP_ANSWER
    assert len(one_sequence_state(llama)) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_end_token_in_a_draft_ends_the_answer(llama: RacerLlama, stream: bool) -> None:
    answer = llama.create_chat_completion(OK_CHAT, max_tokens=60, temperature=0, stream=stream)
    if stream:
        chunks = list(answer)
        text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
        reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        text = answer["choices"][0]["message"]["content"]
        reason = answer["choices"][0]["finish_reason"]
        assert answer["usage"]["completion_tokens"] == 2
    assert (text, reason) == ("OK.", "stop")


def test_a_seed_gives_the_same_text_again(llama: RacerLlama) -> None:
    texts = {text_of(llama(STEP, max_tokens=16, seed=5)) for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.parametrize("n", range(4, 13))
def test_whole_characters_come_out_however_many_tokens_they_take(llama: RacerLlama, n: int) -> None:
    whole = text_of(llama(EMOJI, max_tokens=n, temperature=0))
    chunks = llama(EMOJI, max_tokens=n, temperature=0, stream=True)
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole
    assert "\ufffd" not in whole
    assert llama(EMOJI, max_tokens=n, temperature=0)["usage"]["completion_tokens"] == n


@pytest.mark.parametrize("n_start", range(1, 12))
def test_a_stop_string_is_found_wherever_drafts_end(llama: RacerLlama, n_start: int) -> None:
    at = len(STEP_ANSWER) - 2 * n_start
    stop = STEP_ANSWER[at : at + 8]
    expected = STEP_ANSWER[: STEP_ANSWER.index(stop)]
    assert text_of(llama(STEP, max_tokens=32, temperature=0, stop=[stop])) == expected
    chunks = llama(STEP, max_tokens=32, temperature=0, stop=[stop], stream=True)
    assert "".join(c["choices"][0]["text"] for c in chunks) == expected


@pytest.mark.parametrize("n_free", [1, 2, 3, 8, 40])
def test_a_context_is_filled_to_the_last_token(llama: RacerLlama, n_free: int) -> None:
    ids = llama.tokenize((STEP * 20).encode())[: 512 - n_free]
    answer = llama(ids, max_tokens=None, temperature=0)
    assert answer["usage"]["total_tokens"] <= 512
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")
    if answer["choices"][0]["finish_reason"] == "length":
        assert answer["usage"]["completion_tokens"] == n_free


def test_a_prompt_longer_than_a_batch_is_read_in_parts(smol_path: Path, llama: RacerLlama) -> None:
    ids = llama.tokenize((STEP * 9).encode())[:300]
    told: list[tuple[int, int]] = []
    small = RacerLlama(str(smol_path), n_ctx=512, n_batch=64, draft="racer", budget=12)
    small.on_prefill = lambda done, total: told.append((done, total))
    try:
        answer = small(ids, max_tokens=8, temperature=0)
    finally:
        small.close()
    assert text_of(answer) == text_of(llama(ids, max_tokens=8, temperature=0))
    assert told[0] == (64, 300)
    assert told[-1] == (300, 300)


# --- prefixes ---


def test_a_side_question_does_not_evict_the_chat(llama: RacerLlama) -> None:
    chat = STEP * 4
    ask(llama, chat, 8)
    ask(llama, "What is the capital of France? Answer in a long sentence, please. " * 3, 8)
    assert llama.last_stats is not None
    n_read_for_side = llama.last_stats.n_prompt - llama.last_stats.n_reused
    assert n_read_for_side > 30
    ask(llama, chat + " open\nStep 10:", 8)
    assert llama.last_stats.n_reused >= len(llama.tokenize(chat.encode())) - 1


def test_a_restored_prefix_gives_the_text_of_a_fresh_model(llama: RacerLlama) -> None:
    llama.reset()
    expected = ask(llama, STEP * 3)
    ask(llama, "The cat sat on the mat and looked at the dog. " * 6, 4)
    assert ask(llama, STEP * 3) == expected
    assert llama.last_stats is not None
    assert llama.last_stats.n_reused > 60


def test_drafts_of_another_text_do_not_lower_acceptance(llama: RacerLlama) -> None:
    keys = "pkg-a 1.0 sum:Qx7fZk2LpW\n" * 6
    ask(llama, keys, 24)
    assert llama.last_stats is not None
    fresh = llama.last_stats.acceptance
    llama.reset()
    ask(llama, STEP * 5, 24)
    ask(llama, keys, 24)
    assert llama.last_stats.acceptance >= fresh - 0.05
    llama.n_tokens = 5
    ask(llama, keys, 24)
    assert llama.last_stats.acceptance >= fresh - 0.05


def test_the_next_turn_reads_only_what_is_new(llama: RacerLlama) -> None:
    first = llama.create_chat_completion(OK_CHAT, max_tokens=8, temperature=0)
    assert llama.n_tokens <= first["usage"]["total_tokens"] + 1
    turn = [*OK_CHAT, first["choices"][0]["message"], {"role": "user", "content": "Say YES."}]
    again = llama.create_chat_completion(turn, max_tokens=8, temperature=0)
    assert llama.last_stats is not None
    assert llama.last_stats.n_reused >= first["usage"]["prompt_tokens"]
    llama.reset()
    fresh = llama.create_chat_completion(turn, max_tokens=8, temperature=0)
    assert fresh["choices"] == again["choices"]


# --- cancelling, closing, dropping ---


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_stream_left_early_leaves_no_trace(llama: RacerLlama, n: int, how: str) -> None:
    stream = llama(STEP, max_tokens=32, temperature=0, stream=True)
    for _ in range(n):
        next(stream)
    if how == "close":
        stream.close()
    del stream
    assert ask(llama) == STEP_ANSWER
    assert len(one_sequence_state(llama)) == 1


def test_cancel_ends_the_running_call_and_keeps_its_text(llama: RacerLlama) -> None:
    stream = llama(STEP, max_tokens=300, temperature=0, stream=True)
    texts = [next(stream)["choices"][0]["text"] for _ in range(4)]
    assert llama.cancel()
    rest = list(stream)
    assert rest[-1]["choices"][0]["finish_reason"] == "cancelled"
    assert len(rest) <= 2
    assert STEP_ANSWER.startswith("".join(texts))
    assert not llama.cancel()
    assert ask(llama) == STEP_ANSWER


def test_cancel_during_a_long_prompt(tiny_path: Callable[[str], Path]) -> None:
    llama = RacerLlama(str(tiny_path("cycle")), n_ctx=1024, n_batch=64, draft="racer", budget=12)
    told: list[tuple[int, int]] = []

    def cancel(n_read: int, n_all: int) -> None:
        told.append((n_read, n_all))
        stopper = threading.Thread(target=llama.cancel)
        stopper.start()
        stopper.join()

    llama.on_prefill = cancel
    answer = llama("x" * 600, max_tokens=100, temperature=0)
    assert answer["choices"][0] == {
        **answer["choices"][0],
        "text": "",
        "finish_reason": "cancelled",
    }
    # Once, in the middle.
    [(n_read, n_all)] = told
    assert n_read < n_all
    llama.on_prefill = None
    assert ask(llama, "x" * 600, 8) == "abcdefgh"
    llama.close()


@pytest.mark.parametrize("n", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_many_random_cancels_in_a_row(llama: RacerLlama, n: int) -> None:
    generator = random.Random(3)
    for i in range(n):
        if i % 10 == 9:
            assert ask(llama) == STEP_ANSWER
        timer = threading.Timer(generator.random() * 0.03, llama.cancel)
        timer.start()
        llama(STEP, max_tokens=generator.randint(1, 30), temperature=0)
        timer.join()
    assert ask(llama) == STEP_ANSWER
    assert len(one_sequence_state(llama)) == 1


def test_a_prefix_is_reused_after_a_cancelled_call(llama: RacerLlama) -> None:
    stream = llama(STEP, max_tokens=300, temperature=0, stream=True)
    for _ in range(9):
        next(stream)
    assert llama.cancel()
    list(stream)
    assert ask(llama) == STEP_ANSWER
    assert llama.last_stats is not None
    assert llama.last_stats.n_reused == llama.last_stats.n_prompt - 1


def test_a_stream_inside_a_stream_is_a_clear_error(llama: RacerLlama) -> None:
    stream = llama(STEP, max_tokens=32, temperature=0, stream=True)
    next(stream)
    with pytest.raises(BusyError, match="unfinished stream"):
        ask(llama)
    stream.close()
    assert ask(llama) == STEP_ANSWER


# --- threads and asyncio ---


def test_many_threads_get_the_answers_of_one(llama: RacerLlama) -> None:
    prompts = [f"{i} {i} {i} " + STEP[i:] for i in range(4)]
    expected = [ask(llama, prompt, 12) for prompt in prompts]
    answers: dict[tuple[int, int], str] = {}

    def work(i: int) -> None:
        for n in range(5):
            options = {"max_tokens": 12, "temperature": 0}
            if n % 2:
                chunks = llama(prompts[i], stream=True, **options)
                answers[i, n] = "".join(c["choices"][0]["text"] for c in chunks)
            else:
                answers[i, n] = text_of(llama(prompts[i], **options))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {(i, n): expected[i] for i in range(4) for n in range(5)}


def test_a_bounded_wait_ends_with_a_clear_error(llama: RacerLlama) -> None:
    stream = llama(STEP, max_tokens=32, temperature=0, stream=True)
    next(stream)
    errors: list[BaseException] = []

    def work() -> None:
        llama.wait_timeout_s = 0.05
        try:
            ask(llama)
        except BusyError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "busy" in str(errors[0])
    llama.wait_timeout_s = None
    stream.close()
    assert ask(llama) == STEP_ANSWER


def test_asyncio_calls_do_not_block_the_loop(llama: RacerLlama) -> None:
    """Each token waits for a turn of the loop: were it blocked, that would be for ever."""

    async def main() -> tuple[str, str, str]:
        has_ticked = threading.Event()
        n_waits = 0

        async def tick() -> None:
            while True:
                await asyncio.sleep(0)
                has_ticked.set()

        def wait(ids: Any, scores: Any) -> Any:
            nonlocal n_waits
            n_waits += 1
            has_ticked.clear()
            assert has_ticked.wait(300)
            return scores

        ticker = asyncio.create_task(tick())
        options: dict[str, Any] = {"max_tokens": 32, "temperature": 0}
        options["logits_processor"] = [wait]
        chunks = await llama.acreate_completion(STEP, stream=True, **options)
        streamed = "".join([c["choices"][0]["text"] async for c in chunks])
        whole = text_of(await llama.acreate_completion(STEP, **options))
        events = llama.astream_events(STEP, **options)
        told = "".join([event.text async for event in events])
        ticker.cancel()
        assert n_waits >= 3 * 32
        return streamed, whole, told

    assert list(asyncio.run(main())) == [STEP_ANSWER] * 3


def test_asyncio_cancelling_frees_the_model(llama: RacerLlama) -> None:
    began = threading.Event()

    def note(ids: Any, scores: Any) -> Any:
        began.set()
        return scores

    async def main() -> str:
        endless = {"max_tokens": None, "logit_bias": {"0": -100, "2": -100}}
        running = asyncio.create_task(
            llama.acreate_completion(STEP, logits_processor=[note], **endless)
        )
        assert await asyncio.to_thread(began.wait, 300)
        waiting = asyncio.create_task(llama.acreate_completion(LONG, **endless))
        await asyncio.sleep(0)
        running.cancel()
        waiting.cancel()
        ended = await asyncio.gather(running, waiting, return_exceptions=True)
        assert [type(error) for error in ended] == [asyncio.CancelledError] * 2
        async for _ in llama.astream_events(STEP, max_tokens=100, temperature=0):
            break
        return text_of(await llama.acreate_completion(STEP, max_tokens=32, temperature=0))

    assert asyncio.run(main()) == STEP_ANSWER


def test_more_waiting_asyncio_calls_than_pool_threads_do_not_lock_up(llama: RacerLlama) -> None:
    async def main() -> list[str]:
        calls = [llama.acreate_completion(CATS, max_tokens=2, temperature=0) for _ in range(50)]
        return [text_of(answer) for answer in await asyncio.gather(*calls)]

    assert len(set(asyncio.run(main()))) == 1


# --- events, overflow ---


def test_events_tell_text_source_and_stats(llama: RacerLlama) -> None:
    events = list(llama.stream_events(STEP, max_tokens=32, temperature=0, logprobs=1))
    assert "".join(event.text for event in events) == STEP_ANSWER
    assert {event.source for event in events} <= {"retrieval", "logits", "target"}
    assert {event.source for event in events} > {"target"}
    assert events[-1].finish_reason == "length"
    assert events[-1].token is None
    assert all(event.logprobs and event.logprobs.logprob <= 0 for event in events[:-1])
    stats = events[-1].stats.as_dict()
    assert (stats["n_generated"], stats["n_prompt"]) == (32, len(llama.tokenize(STEP.encode())))


def test_an_unknown_option_is_an_error_and_no_surprise(llama: RacerLlama) -> None:
    with pytest.raises(ConfigError, match="max_token"):
        llama.stream_events(STEP, max_token=3)


def test_a_callback_that_calls_the_model_is_told_so(llama: RacerLlama) -> None:
    def ask_again(ids: Any, scores: Any) -> Any:
        ask(llama)
        return scores

    with pytest.raises(BusyError, match="callback"):
        llama(STEP, max_tokens=2, logits_processor=[ask_again])
    assert ask(llama) == STEP_ANSWER


def test_a_prompt_that_is_too_long_names_both_counts(llama: RacerLlama) -> None:
    ids = llama.tokenize(LONG.encode()) * 3
    with pytest.raises(ContextFullError, match=f"{len(ids)} tokens.* 512") as caught:
        llama(ids, max_tokens=4)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ContextFullError):
        list(llama.stream_events(ids, max_tokens=4))


def test_the_oldest_turns_are_dropped_only_if_asked_for(llama: RacerLlama) -> None:
    system = {"role": "system", "content": "Be brief."}
    turns = [
        message
        for i in range(12)
        for message in (
            {"role": "user", "content": f"Question {i}: " + "why? " * 20},
            {"role": "assistant", "content": f"Answer {i}: " + "because. " * 10},
        )
    ]
    last = {"role": "user", "content": "Say hi."}
    with pytest.raises(ContextFullError):
        llama.create_chat_completion([system, *turns, last], max_tokens=8)
    llama.overflow = "drop_oldest"
    answer = llama.create_chat_completion([system, *turns, last], max_tokens=8, temperature=0)
    dropped = llama.last_dropped
    assert dropped == turns[: len(dropped)]
    assert 0 < len(dropped) < len(turns)
    assert answer["usage"]["prompt_tokens"] <= 512 - 8
    assert llama.last_stats is not None
    assert "left out" in llama.last_stats.notices[0]
    with pytest.raises(ContextFullError):
        llama.create_chat_completion([{"role": "user", "content": LONG * 3}], max_tokens=8)


def test_a_grammar_that_cannot_be_read_is_a_clear_error(llama: RacerLlama) -> None:
    from llama_cpp import LlamaGrammar

    with pytest.raises(ConfigError, match="grammar"):
        llama(STEP, grammar=LlamaGrammar.from_string("root ::= (", verbose=False))
    assert ask(llama) == STEP_ANSWER


# --- state, life cycle ---


def test_a_saved_state_comes_back(llama: RacerLlama) -> None:
    llama.eval(llama.tokenize(STEP.encode()))
    state = pickle.loads(pickle.dumps(llama.save_state()))
    llama.reset()
    assert llama.n_tokens == 0
    llama.load_state(state)
    assert llama.n_tokens == len(llama.tokenize(STEP.encode()))
    assert ask(llama) == STEP_ANSWER
    assert llama.last_stats is not None
    assert llama.last_stats.n_reused == llama.last_stats.n_prompt - 1
    state.llama_state = state.llama_state[:100]
    state.llama_state_size = 100
    with pytest.raises(RuntimeError, match="does not fit"):
        llama.load_state(state)


def test_upstreams_ram_cache_works(llama: RacerLlama) -> None:
    from llama_cpp import LlamaRAMCache

    llama.set_cache(LlamaRAMCache())
    try:
        assert ask(llama) == STEP_ANSWER
        llama.reset()
        assert ask(llama) == STEP_ANSWER
        assert llama.last_stats is not None
        assert llama.last_stats.n_reused > 20
    finally:
        llama.set_cache(None)


def test_low_level_calls_work_as_upstreams(llama: RacerLlama) -> None:
    llama.eval(llama.tokenize(STEP.encode()))
    tokens = []
    for _ in range(8):
        tokens.append(llama.sample(temp=0.0))
        llama.eval(tokens[-1:])
    assert STEP_ANSWER.startswith(llama.detokenize(tokens).decode())


def test_a_pickled_model_opens_again(llama: RacerLlama) -> None:
    copy = pickle.loads(pickle.dumps(llama))
    try:
        assert ask(copy) == STEP_ANSWER
        assert copy.n_ctx() == llama.n_ctx()
    finally:
        copy.close()


def test_two_models_in_two_threads(smol_path: Path, llama: RacerLlama) -> None:
    other = RacerLlama(str(smol_path), n_ctx=512, draft="racer", budget=12)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda m=m: answers.append(ask(m))) for m in (llama, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert answers == [STEP_ANSWER] * 2


def test_closing_twice_and_using_after(smol_path: Path) -> None:
    model = RacerLlama(str(smol_path), n_ctx=256, draft="off")
    stream = model(STEP, max_tokens=32, temperature=0, stream=True)
    next(stream)
    model.close()
    model.close()
    with pytest.raises(ClosedError):
        ask(model)
    assert list(stream)[-1]["choices"][0]["finish_reason"] == "cancelled"


def test_wrong_files_and_settings_are_one_clear_error(smol_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        RacerLlama(str(tmp_path / "missing.gguf"))
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(ModelLoadError):
        RacerLlama(str(tmp_path / "empty.gguf"))
    with pytest.raises(ConfigError, match="draft mode"):
        RacerLlama(str(smol_path), draft="wild")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="overflow"):
        RacerLlama(str(smol_path), overflow="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", ["with space", "模型", "🚀 models"])
def test_odd_paths(smol_path: Path, tmp_path: Path, folder: str) -> None:
    path = tmp_path / folder / "m 模型.gguf"
    path.parent.mkdir()
    try:
        path.symlink_to(smol_path.resolve())
    except OSError:
        shutil.copy(smol_path, path)
    model = RacerLlama(str(path), n_ctx=256, draft="racer", budget=8)
    try:
        assert ask(model) == STEP_ANSWER
    finally:
        model.close()


def test_a_draft_model_for_upstreams_own_class(smol_path: Path) -> None:
    import llama_cpp

    draft = RacerDraftModel(n_tokens=4)
    model = llama_cpp.Llama(
        str(smol_path),
        n_ctx=512,
        flash_attn=True,
        logits_all=True,
        draft_model=draft,
        verbose=False,
    )
    draft.attach(model)
    assert text_of(model(STEP, max_tokens=32, temperature=0)) == STEP_ANSWER
    chain = draft(model.input_ids[: model.n_tokens])
    assert 0 < len(chain) <= 4
    model.close()


def test_a_draft_model_and_a_prompt_longer_than_a_batch(smol_path: Path, llama: RacerLlama) -> None:
    import llama_cpp

    expected = ask(llama, STEP, 8)
    path, sizes = str(smol_path), {"n_ctx": 512, "n_batch": 32}
    model = RacerLlama(path, draft_model=RacerDraftModel(), **sizes)
    assert any("draft_model" in notice for notice in model.notices)
    assert ask(model, STEP, 8) == expected
    model.close()
    draft = RacerDraftModel()
    plain = llama_cpp.Llama(
        path, draft_model=draft, logits_all=True, flash_attn=True, verbose=False, **sizes
    )
    draft.attach(plain)
    assert ask(plain, STEP, 8) == expected
    plain.close()


def test_elements_of_the_kv_cache_have_names(smol_path: Path) -> None:
    import llama_cpp

    model = RacerLlama(str(smol_path), n_ctx=256, draft="off", kv_type="q8_0")
    assert model.context_params.type_k == model.context_params.type_v == llama_cpp.GGML_TYPE_Q8_0
    copy = pickle.loads(pickle.dumps(model))
    assert copy.context_params.type_v == llama_cpp.GGML_TYPE_Q8_0
    for opened in (copy, model):
        opened.close()
    with pytest.raises(ConfigError, match="f16, q8_0, f32"):
        RacerLlama(str(smol_path), kv_type="q4")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="type_k"):
        RacerLlama(str(smol_path), kv_type="q8_0", type_k=1)


OPENED = "llama = RacerLlama(path, n_ctx=512, draft='racer', budget=8)\n"
GROWTH = """
import psutil
sizes = []
for _ in range(10):
    llama = RacerLlama(path, n_ctx=256, draft='racer', budget=8)
    llama('a b a b', max_tokens=4)
    llama.close()
    del llama
    sizes.append(psutil.Process().memory_info().rss / 1e6)
assert sizes[-1] - sizes[1] < 20, sizes
"""
# After the model was loaded: without flash attention there is no context with such values.
NO_CONTEXT = """
from racer_local.errors import ModelLoadError
try: RacerLlama(path, n_ctx=256, flash_attn=False, kv_type='q8_0')
except ModelLoadError as error: assert 'could not open' in str(error)
else: raise SystemExit('opened')
"""
SCRIPTS = {
    "left open at exit": OPENED + "llama('a b a b', max_tokens=4)",
    "left in the middle of a stream": OPENED
    + "s = llama('a b a b', max_tokens=40, stream=True); next(s)",
    "a daemon thread computes at exit": OPENED
    + (
        "import threading, time\n"
        "threading.Thread(target=lambda: llama('a b', max_tokens=400), daemon=True).start()\n"
        "time.sleep(0.1)"
    ),
    "closed twice": OPENED + "llama.close(); llama.close()",
    "a file that is missing": (
        "try: RacerLlama('missing.gguf')\nexcept ValueError as error: assert 'exist' in str(error)"
    ),
    "without a console": "import sys\nsys.stdout = sys.stderr = None\n"
    + OPENED
    + "llama('a b', max_tokens=2)",
    "an empty file": (
        "open('empty.gguf', 'w').close()\n"
        "try: RacerLlama('empty.gguf')\nexcept ValueError as error: assert 'empty' in str(error)"
    ),
    "an option that is wrong": (
        "try: RacerLlama(path, draft='racer', budget=-1)\n"
        "except ValueError as error: assert 'budget' in str(error)"
    ),
    "no context for a model that was loaded": NO_CONTEXT,
    "closed by closing": (
        "import contextlib\n"
        "with contextlib.closing(RacerLlama(path, n_ctx=256)) as llama: llama('a', max_tokens=2)"
    ),
    "opened and closed ten times": GROWTH,
    "spawned": OPENED
    + (
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    llama('a b', max_tokens=2)\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        assert pool.apply(len, ('abc',)) == 3"
    ),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_process_ends_cleanly_and_quietly(script: str, smol_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        f"from racer_local import RacerLlama\npath = {str(smol_path.resolve())!r}\n" + script,
        encoding="utf-8",
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
