"""Every address of the API, over real HTTP: plain requests and OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from conftest import Served  # type: ignore[attr-defined]

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.server

QUESTION = [{"role": "user", "content": "Count from one to twelve in words."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the events of a stream that ended as it should."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert blocks.pop() == "data: [DONE]"
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block[6:]) for block in blocks]


def ask(client: httpx.Client, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    usual: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
    if "chat" in path and "messages" not in body:
        usual["messages"] = QUESTION
    return client.post(path, json={**usual, **body})


@pytest.fixture
def sdk(served: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as sdk:
        yield sdk


def test_a_chat_is_answered_and_streamed_the_same(client: httpx.Client) -> None:
    whole = ask(client, model="gpt-4o-mini").json()
    assert whole["object"] == "chat.completion"
    assert whole["model"] == "SmolLM2-135M-Instruct.Q4_1"
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 40
    events = events_of(ask(client, stream=True, stream_options={"include_usage": True}))
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    last = events.pop()
    assert last["choices"] == []
    assert {**last["usage"], "prompt_tokens_details": 0} == {
        **whole["usage"],
        "prompt_tokens_details": 0,
        "completion_tokens_details": last["usage"]["completion_tokens_details"],
    }
    deltas = [event["choices"][0] for event in events]
    assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in deltas[1:])
    assert [choice["finish_reason"] for choice in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert deltas[-1]["delta"] == {}
    assert all(choice["index"] == 0 for choice in deltas)
    text = "".join(choice["delta"].get("content", "") for choice in deltas)
    assert text == choice_text(whole)


def choice_text(whole: dict[str, Any]) -> str:
    text: str = whole["choices"][0]["message"]["content"]
    return text


def test_usage_comes_in_a_stream_only_when_asked_for(client: httpx.Client) -> None:
    events = events_of(ask(client, stream=True, max_tokens=3))
    assert all(event["choices"] for event in events)
    assert all("usage" not in event for event in events)


def test_drafts_are_told_in_both_places(client: httpx.Client, served_tiny: Served) -> None:
    with served_tiny.client() as surely:
        for each in (client, surely):
            reply = ask(each, "/v1/completions", prompt="abcd" * 6, max_tokens=48).json()
            timings, details = reply["timings"], reply["usage"]["completion_tokens_details"]
            assert timings["draft_n_accepted"] == details["accepted_prediction_tokens"]
            assert timings["draft_n"] == sum(details.values())
            assert timings["predicted_n"] == reply["usage"]["completion_tokens"] > 0
    assert timings["draft_n"] >= timings["draft_n_accepted"] > 20
    assert served_tiny.metrics()["racer_draft_accepted_tokens_total['retrieval']"] > 20


def test_a_conversation_that_goes_on_is_read_from_the_cache(client: httpx.Client) -> None:
    first = ask(client).json()
    answer = first["choices"][0]["message"]
    longer = [*QUESTION, answer, {"role": "user", "content": "And back again."}]
    # An editor's completion in between does not push the chat out.
    ask(client, "/v1/completions", prompt="def fibonacci(n):\n" * 12, max_tokens=8)
    details = ask(client, messages=longer).json()["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] >= first["usage"]["prompt_tokens"]


def test_limits_are_kept_under_both_names(client: httpx.Client) -> None:
    for limit in ({"max_tokens": 1}, {"max_tokens": None, "max_completion_tokens": 5}):
        reply = ask(client, **limit).json()
        assert reply["usage"]["completion_tokens"] == max(v for v in limit.values() if v)
    text = choice_text(ask(client).json())
    end = text[len(text) // 2 :][:4]
    for limit in (None, 0, -1):
        reply = ask(client, max_tokens=limit, stop=[end])
        assert reply.status_code == 200
        assert reply.json()["choices"][0]["finish_reason"] == "stop"


def test_stop_strings_end_the_answer_and_are_not_part_of_it(client: httpx.Client) -> None:
    text = choice_text(ask(client).json())
    end = text[len(text) // 2 :][:4]
    for stop in (end, ["no such text", end]):
        choice = ask(client, stop=stop).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"] == text[: text.index(end)]


def test_a_seed_repeats_an_answer_and_n_gives_several(client: httpx.Client) -> None:
    hot = {"temperature": 1.5, "seed": 7, "n": 3, "max_tokens": 12}
    first, again = ask(client, **hot).json(), ask(client, **hot).json()
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert texts == [choice["message"]["content"] for choice in again["choices"]]
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert first["usage"]["completion_tokens"] <= 36
    events = events_of(ask(client, stream=True, **hot))
    streamed = ["", "", ""]
    for event in events:
        choice = event["choices"][0]
        streamed[choice["index"]] += choice["delta"].get("content", "")
    assert streamed == texts


def test_log_probabilities_of_a_chat(client: httpx.Client) -> None:
    reply = ask(client, logprobs=True, top_logprobs=3, max_tokens=6).json()
    entries = reply["choices"][0]["logprobs"]["content"]
    assert len(entries) == 6
    text = b"".join(bytes(entry["bytes"]) for entry in entries).decode()
    assert text == choice_text(reply)
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        assert entry["logprob"] == pytest.approx(entry["top_logprobs"][0]["logprob"])
    events = events_of(ask(client, logprobs=True, top_logprobs=3, max_tokens=6, stream=True))
    streamed = [
        entry
        for event in events
        for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]


def test_a_bias_decides(client: httpx.Client) -> None:
    tokens = client.post("/tokenize", json={"content": " moon"}).json()["tokens"]
    assert len(tokens) == 1
    reply = ask(client, logit_bias={str(tokens[0]): 100}, max_tokens=3).json()
    assert choice_text(reply) == " moon moon moon"
    refused = ask(client, logit_bias={"9999999": 1})
    assert (refused.status_code, "vocabulary" in refused.text) == (400, True)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_forced_tool_call_comes_whole_and_in_deltas(client: httpx.Client, choice: Any) -> None:
    body = {
        "messages": [{"role": "user", "content": "How is the weather in Bern?"}],
        "tools": [TOOL],
        "tool_choice": choice,
        # The schema's limits end it: no text of any model is longer.
        "max_tokens": 250,
    }
    reply = ask(client, **body).json()["choices"][0]
    assert reply["finish_reason"] == "tool_calls"
    call = reply["message"]["tool_calls"][0]
    assert reply["message"]["content"] is None
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert list(json.loads(call["function"]["arguments"])) == ["city"]
    events = events_of(ask(client, stream=True, **body))
    deltas = [d for e in events for d in e["choices"][0]["delta"].get("tool_calls", [])]
    assert {delta["index"] for delta in deltas} == {0}
    assert deltas[0]["id"]
    assert deltas[0]["function"]["name"] == "get_weather"
    assert all("id" not in delta and "name" not in delta["function"] for delta in deltas[1:])
    arguments = "".join(delta["function"]["arguments"] for delta in deltas)
    assert arguments == call["function"]["arguments"]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_conversation_with_calls_goes_on(client: httpx.Client) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Bern"}'}
    messages = [
        {"role": "user", "content": "How is the weather in Bern?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
    ]
    for tools in ({"tools": [TOOL]}, {}, {"tools": [TOOL], "tool_choice": "none"}):
        assert ask(client, messages=messages, **tools).status_code == 200


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}},
        {"type": "json_object", "schema": PERSON},
    ],
)
def test_an_answer_keeps_to_a_schema(client: httpx.Client, response_format: Any) -> None:
    messages = [{"role": "user", "content": "Describe a person as JSON."}]
    reply = ask(client, messages=messages, response_format=response_format, max_tokens=250)
    person = json.loads(choice_text(reply.json()))
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


def test_an_answer_can_be_any_json(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Give the JSON object {} of a point."}]
    reply = ask(client, messages=messages, response_format={"type": "json_object"}, max_tokens=200)
    choice = reply.json()["choices"][0]
    if choice["finish_reason"] == "stop":
        json.loads(choice["message"]["content"])
    assert choice["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://evil.example/schema.json"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"type": "string", "maxLength": 10**9},
        {"type": "string", "pattern": "^(" + "a*" * 150 + ")$"},
        {"type": "no-such-type"},
        {"properties": {f"p{i}": {"type": "string"} for i in range(300)}},
    ],
)
def test_a_bad_schema_is_the_callers_fault(client: httpx.Client, schema: Any) -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    refused = ask(client, response_format=response_format, max_tokens=4)
    assert refused.status_code == 400
    assert "schema" in refused.json()["error"]["message"] or "grammar" in refused.text


def test_completions_continue_texts_and_token_ids(client: httpx.Client) -> None:
    path = "/v1/completions"
    prompt = "The capital of France is"
    text = ask(client, path, prompt=prompt, max_tokens=8).json()["choices"][0]["text"]
    tokens = client.post("/tokenize", json={"content": prompt}).json()["tokens"]
    assert ask(client, path, prompt=tokens, max_tokens=8).json()["choices"][0]["text"] == text
    both = ask(client, path, prompt=[prompt, prompt], max_tokens=8).json()
    assert [choice["text"] for choice in both["choices"]] == [text, text]
    assert both["usage"]["prompt_tokens"] == 2 * len(tokens)
    echoed = ask(client, path, prompt=prompt, max_tokens=8, echo=True).json()
    assert echoed["choices"][0]["text"] == prompt + text
    events = events_of(ask(client, path, prompt=prompt, max_tokens=8, stream=True))
    assert "".join(event["choices"][0]["text"] for event in events) == text
    probs = ask(client, path, prompt=prompt, max_tokens=4, logprobs=2).json()["choices"][0]
    assert len(probs["logprobs"]["tokens"]) == 4
    assert all(len(top) >= 2 for top in probs["logprobs"]["top_logprobs"])
    assert "".join(probs["logprobs"]["tokens"]) == probs["text"]


def test_texts_become_tokens_and_back(client: httpx.Client) -> None:
    text = "Grüße, 世界! 🦝"
    tokens = client.post("/tokenize", json={"content": text}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"content": text}
    assert client.post("/tokenize", json={"content": ""}).json()["tokens"] == []
    assert client.post("/detokenize", json={"tokens": [10**9]}).status_code == 400
    assert client.post("/detokenize", json={"tokens": [-1]}).status_code == 400


def test_the_model_is_listed_with_its_context(client: httpx.Client) -> None:
    for path in ("/v1/models", "/models"):
        model = client.get(path).json()["data"][0]
        assert model["id"] == "SmolLM2-135M-Instruct.Q4_1"
        assert model["meta"] == {"n_ctx": 1024, "n_ctx_train": 8192}
    assert client.get("/v1/models/SmolLM2-135M-Instruct.Q4_1").json() == model
    for name in ("other/model:latest", "../../etc/passwd", "..%2F..%2Fetc%2Fpasswd"):
        refused = client.get(f"/v1/models/{name}")
        assert refused.status_code == 404
        assert "passwd" not in refused.text


def test_health_and_metrics(client: httpx.Client) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    assert client.get("/health").json() == {"status": "ok", "model_loaded": True}
    ask(client, "/v1/completions", prompt="a b c d a b c d a b c d a b c", max_tokens=16)
    response = client.get("/metrics")
    families = {f.name: f for f in text_string_to_metric_families(response.text)}
    values = {s.name + str(s.labels): s.value for f in families.values() for s in f.samples}
    assert all(value == value for value in values.values())
    assert values["racer_tokens_total{'kind': 'generated'}"] >= 16
    assert values["racer_decode_steps_total{}"] > 0
    assert values["racer_speedup_estimate{}"] > 0
    assert "racer_draft_accepted_tokens_total{'source': 'retrieval'}" in values
    assert values["racer_model_loaded{}"] == 1


def test_openais_client_chats_streams_and_calls(sdk: Any) -> None:
    whole = sdk.chat.completions.create(
        model="m", messages=QUESTION, temperature=0, max_completion_tokens=20
    )
    assert whole.usage.completion_tokens == 20
    stream = sdk.chat.completions.create(
        model="m",
        messages=QUESTION,
        temperature=0,
        max_completion_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    with sdk.chat.completions.stream(
        model="m", messages=QUESTION, tools=[TOOL], tool_choice="required", max_tokens=250
    ) as events:
        final = events.get_final_completion()
    call = final.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert "city" in json.loads(call.function.arguments)
    assert sdk.completions.create(model="m", prompt="Hi", max_tokens=2).usage.completion_tokens <= 2
    assert [model.id for model in sdk.models.list()] == ["SmolLM2-135M-Instruct.Q4_1"]


def test_openais_client_parses_into_a_class(sdk: Any) -> None:
    from pydantic import BaseModel, Field

    class Person(BaseModel):
        name: str = Field(max_length=10)
        age: int

    parsed = sdk.chat.completions.parse(
        model="m",
        messages=[{"role": "user", "content": "Tom is 7 years old. Extract name and age."}],
        response_format=Person,
        temperature=0,
        max_tokens=250,
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)


def test_openais_client_raises_its_own_errors(sdk: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="context holds 1024") as caught:
        sdk.completions.create(model="m", prompt="word " * 2000, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("nobody")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        sdk.chat.completions.create(model="m", messages=QUESTION, temperature=-1)


def test_the_openapi_schema_describes_what_comes(client: httpx.Client) -> None:
    import pydantic

    from racer_local.server.reply_schema import ChatCompletion, Completion, ErrorReply, ModelList

    document = client.get("/openapi.json").json()
    wanted = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/tokenize", "/health"}
    assert wanted <= set(document["paths"])
    ChatCompletion.model_validate(ask(client).json(), strict=False)
    Completion.model_validate(ask(client, "/v1/completions", prompt="Hi").json())
    ModelList.model_validate(client.get("/v1/models").json())
    ErrorReply.model_validate(client.get("/nowhere").json())
    with pytest.raises(pydantic.ValidationError):
        ErrorReply.model_validate({"detail": "x"})
