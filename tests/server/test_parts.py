"""The parts that need no model: tool calls in text, limits, key check, requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from racer_local.concurrency.time_limit import TooSlowError, time_limit
from racer_local.server.grammars import grammar_for
from racer_local.server.inbox import Inbox
from racer_local.server.plain_json import check_plain_json
from racer_local.server.schema import ChatRequest, CompletionRequest
from racer_local.server.tool_text import AnswerReader, Bit

WEATHER = '{"name": "weather", "arguments": {"city": "Bern \\"{\\" ", "days": [1, {"a": "}"}]}}'
ARGUMENTS = json.loads(WEATHER)["arguments"]


def read(pieces: list[str], *functions: str, **options: bool) -> list[Bit]:
    reader = AnswerReader(functions, **options)
    bits = [bit for piece in pieces for bit in reader.push(piece)]
    return [*bits, *reader.finish()]


def calls_in(bits: list[Bit]) -> tuple[str, list[tuple[str, object]]]:
    calls: list[list[str]] = []
    for bit in bits:
        if bit.kind == "call":
            calls.append([bit.text, ""])
        elif bit.kind == "arguments":
            calls[-1][1] += bit.text
    content = "".join(bit.text for bit in bits if bit.kind == "content")
    return content, [(name, json.loads(text)) for name, text in calls]


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("text", "content", "n_calls"),
    [
        (f"<tool_call>\n{WEATHER}\n</tool_call>", "", 1),
        (
            f"I look.\n<tool_call>{WEATHER}</tool_call>\n<tool_call>{WEATHER}</tool_call>",
            "I look.",
            2,
        ),
        (WEATHER, "", 1),
        (f"[{WEATHER}, {WEATHER}]", "", 2),
        (WEATHER.replace('"arguments"', '"parameters"'), "", 1),
        (
            '<tool_call>{"arguments": '
            + json.dumps(ARGUMENTS)
            + ', "name": "weather"}</tool_call>',
            "",
            1,
        ),
    ],
)
def test_calls_are_found_however_the_text_is_cut(
    text: str, content: str, n_calls: int, n: int
) -> None:
    pieces = [text[i : i + n] for i in range(0, len(text), n)]
    assert calls_in(read(pieces, "weather")) == (content, [("weather", ARGUMENTS)] * n_calls)


@pytest.mark.parametrize(
    "text",
    [
        "plain text",
        '{"name": "other", "arguments": {}}',
        '{"answer": 42}',
        "{",
        "a < b, <tool, <tool_cal",
        "<tool_call>no call</tool_call>",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    bits = read(list(text), "weather")
    assert {bit.kind for bit in bits} == {"content"}
    assert "".join(bit.text for bit in bits).replace("</tool_call>", "") == text.replace(
        "</tool_call>", ""
    )


@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "{", '"name"', ":", "}", "x", " "]))
)
def test_no_text_breaks_the_reader(pieces: list[str]) -> None:
    read(pieces, "x")
    read(pieces, "x", is_call=True)


def test_thoughts_are_apart_from_the_answer() -> None:
    bits = read(list("<think>\nHm.\n</think>\n\nYes."))
    assert [(bit.kind, bit.text) for bit in bits if bit.text] != []
    thoughts = "".join(bit.text for bit in bits if bit.kind == "reasoning")
    assert thoughts.strip() == "Hm."
    assert "".join(bit.text for bit in bits if bit.kind == "content").strip() == "Yes."
    bits = read(list("Hm.</think>Yes."), is_thinking=True)
    assert "".join(bit.text for bit in bits if bit.kind == "reasoning") == "Hm."


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        10**30,
        "\ud800",
        {"\udfff": 1},
        json.loads("[" * 50 + "]" * 50),
        list(range(20_000)),
        "x" * 300_000,
    ],
)
def test_odd_json_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        check_plain_json({"a": value})


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": float("nan")},
        {"temperature": -1},
        {"max_tokens": -2},
        {"max_tokens": 2**40},
        {"top_k": 2**31},
        {"seed": 2**64},
        {"n": 0},
        {"n": 100},
        {"logprobs": True, "top_logprobs": 21},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"1": float("inf")}},
        {"stop": ["x"] * 17},
        {"stop": "x" * 300},
        {"messages": []},
        {"messages": [{"role": "wizard", "content": "x"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": "file:///"}]}
            ]
        },
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "nobody"}}},
        {"response_format": {"type": "xml"}},
        {"grammar": 'root ::= "a"'},
        {"chat_template": "{{ 1 }}"},
        {"functions": [{"name": "f"}]},
    ],
)
def test_a_value_out_of_range_never_gets_in(change: dict[str, object]) -> None:
    good = {"messages": [{"role": "user", "content": "Hi"}]}
    ChatRequest.model_validate(good)
    with pytest.raises(ValidationError):
        ChatRequest.model_validate({**good, **change})


def test_requests_of_real_clients_are_understood() -> None:
    request = ChatRequest.model_validate(
        {
            "model": "gpt-4o-mini",
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "assistant", "content": None, "tool_calls": []},
            ],
            "max_tokens": -1,
            "stop": None,
            "user": "me",
            "store": True,
            "metadata": {"a": "b"},
            "service_tier": "auto",
            "reasoning_effort": "low",
            "prompt_cache_key": "x",
            "unheard_of": {"deep": [1]},
        }
    )
    assert request.n_most is None
    assert request.stops == []
    assert request.messages[0].text == "Be brief."
    limited = request.model_copy(update={"max_completion_tokens": 5, "max_tokens": 9})
    assert limited.n_most == 5
    assert CompletionRequest(prompt="a").n_most == 16
    assert CompletionRequest(prompt=[1, 2]).prompts == [[1, 2]]
    assert CompletionRequest(prompt=[[1], [2]]).prompts == [[1], [2]]
    assert CompletionRequest(prompt=["a", "b"]).prompts == ["a", "b"]


def test_slow_code_is_ended_and_quick_code_is_not() -> None:
    def without_end() -> None:
        with time_limit(0.05):
            while True:
                pass

    with pytest.raises(TooSlowError):
        without_end()
    with time_limit(300):
        pass
    # Nor is anything ended later, by a limit that was left in time; a busy machine may miss it.
    with contextlib.suppress(TooSlowError), time_limit(0.05):
        pass
    time.sleep(0.1)


def test_limits_of_several_threads_and_shorter_ones_later_are_kept_apart() -> None:
    ended: list[float] = []

    def spin(seconds: float, ends: bool) -> None:
        began = time.monotonic()
        with contextlib.suppress(TooSlowError), time_limit(seconds):
            while ends or time.monotonic() - began < 0.3:
                pass
            return
        ended.append(seconds)

    threads = [
        threading.Thread(target=spin, args=limit)
        for limit in ((60.0, False), (0.2, True), (0.1, True), (30.0, False))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended) == [0.1, 0.2]


def test_errors_at_the_very_end_of_a_limit_block_no_other_limit() -> None:
    def spin() -> None:
        for _ in range(500):
            with contextlib.suppress(TooSlowError), time_limit(0.002):
                ends = time.monotonic() + 0.00199
                while time.monotonic() < ends:
                    pass

    threads = [threading.Thread(target=spin, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_items_and_errors_reach_the_event_loop_in_order() -> None:
    async def scenario() -> None:
        inbox = Inbox()

        def work() -> None:
            for i in range(100):
                inbox.put(2 * i, 2 * i + 1)
            inbox.finish(KeyError("end"))

        thread = threading.Thread(target=work)
        thread.start()
        items: list[int] = []

        async def collect() -> None:
            while more := await inbox.next_items():
                items.extend(more)

        with pytest.raises(KeyError, match="end"):
            await collect()
        thread.join()
        assert items == list(range(200))
        assert inbox.is_over

    asyncio.run(scenario())


def test_an_inbox_without_items_ends_at_once() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        inbox.finish()
        assert await inbox.next_items() == []
        assert await inbox.next_items() == []

    asyncio.run(scenario())


def test_definitions_of_several_tools_do_not_mix() -> None:
    def tool(name: str, kind: str) -> dict[str, object]:
        parameters = {
            "type": "object",
            "properties": {"item": {"$ref": "#/$defs/Item"}},
            "required": ["item"],
            "$defs": {
                "Item": {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}},
                "X": {"type": kind},
            },
        }
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    request = ChatRequest.model_validate(
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [tool("f", "integer"), tool("g", "boolean")],
            "tool_choice": "required",
        }
    )
    grammar = grammar_for(request)
    assert grammar is not None
    rules = dict(line.split(" ::= ", 1) for line in grammar.splitlines())
    assert rules["f0-Item-x"] == "integer"
    assert rules["f1-Item-x"] == "boolean"
