"""The same calls on ``llama_cpp.Llama`` and on ``RacerLlama``: equal field by field.

``exact``, against upstream with the same KV cache: nothing has to be forgiven.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from inputs import CATS, CODE, EMOJI, OK_CHAT, STEP

from racer_local import RacerLlama
from racer_local.backend.native import physical_cores

N_CTX = 512
ROWS = 12
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ASK = [{"role": "user", "content": "List three colours."}]
LIST = 'root ::= "- " [a-z]+ "\\n- " [a-z]+ "\\n"'


@pytest.fixture(scope="module")
def plain(smol_path: Path) -> Iterator[llama_cpp.Llama]:
    n = physical_cores()
    llama = llama_cpp.Llama(
        str(smol_path),
        n_ctx=N_CTX,
        n_threads=n,
        n_threads_batch=n,
        flash_attn=True,
        type_k=llama_cpp.GGML_TYPE_Q8_0,
        type_v=llama_cpp.GGML_TYPE_Q8_0,
        logits_all=True,
        verbose=False,
    )
    yield llama
    llama.close()


@pytest.fixture(scope="module")
def racer(smol_path: Path) -> Iterator[RacerLlama]:
    llama = RacerLlama(str(smol_path), n_ctx=N_CTX, draft="racer", budget=ROWS, exact=True)
    yield llama
    llama.close()


def without_identity(value: Any) -> Any:
    """Drop ids and times; round floats, whose sums may be taken in another order."""
    if isinstance(value, dict):
        return {k: without_identity(v) for k, v in value.items() if k not in ("id", "created")}
    if isinstance(value, list):
        return [without_identity(v) for v in value]
    if isinstance(value, float | np.floating):
        return pytest.approx(float(value), abs=2e-3)
    return value


def complete(**options: Any) -> Callable[[Any], Any]:
    options = {"prompt": STEP, "max_tokens": 24, "temperature": 0.0, **options}
    return lambda llama: llama.create_completion(**options)


def chat(messages: Any = ASK, **options: Any) -> Callable[[Any], Any]:
    options = {"messages": messages, "max_tokens": 24, "temperature": 0.0, **options}
    return lambda llama: llama.create_chat_completion(**options)


def grammar(text: str = LIST) -> llama_cpp.LlamaGrammar:
    return llama_cpp.LlamaGrammar.from_string(text, verbose=False)


def first_ids(llama: Any, text: str = STEP) -> list[int]:
    ids: list[int] = llama.tokenize(text.encode())
    return ids


def generated(llama: Any, n: int = 12, **options: Any) -> list[int]:
    tokens = []
    for token in llama.generate(first_ids(llama), temp=0.0, **options):
        tokens.append(token)
        if len(tokens) == n:
            break
    return tokens


def never_open(ids: Any, scores: Any) -> Any:
    scores[1520] = -np.inf
    return scores


def no_repeat(ids: Any, scores: Any) -> Any:
    scores[ids[-1]] = -np.inf
    return scores


PROCESSORS = llama_cpp.LogitsProcessorList([no_repeat])
CRITERIA = llama_cpp.StoppingCriteriaList([lambda ids, _: len(ids) >= 40])

CALLS: dict[str, Callable[[Any], Any]] = {
    "greedy": complete(),
    "code": complete(prompt=CODE, max_tokens=40),
    # Upstream goes on beyond a limit that is inside of a character.
    "emoji": complete(prompt=EMOJI, max_tokens=44),
    "chinese": complete(prompt="你好,你好,你好,", max_tokens=20),
    "token ids": lambda llama: llama(first_ids(llama), max_tokens=9, temperature=0),
    "called": lambda llama: llama(CATS, max_tokens=12, temperature=0),
    "one token": complete(max_tokens=1),
    "no limit": complete(prompt=STEP * 9, max_tokens=None),
    "limit 0": complete(prompt=STEP * 9, max_tokens=0),
    "limit -1": complete(prompt=STEP * 9, max_tokens=-1),
    "limit too large": complete(prompt=STEP * 9, max_tokens=9999),
    "stop": complete(stop=["Step 12"]),
    "stop string": complete(stop="Step 12"),
    "two stops": complete(stop=["Step 99", "\nStep 12"], max_tokens=60),
    "stop in a token": complete(stop=["pen\nS"]),
    "stop at once": complete(stop=[" open"]),
    "echo": complete(echo=True),
    "model name": complete(model="another"),
    "repeat penalty": complete(prompt=CATS, repeat_penalty=1.3),
    "frequency penalty": complete(prompt=CATS, frequency_penalty=1.5),
    "presence penalty": complete(prompt=CATS, presence_penalty=1.5),
    "all penalties": complete(
        prompt=CATS, repeat_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.3
    ),
    "logit bias": complete(prompt=CATS, logit_bias={2767: -100.0, 5200: 3.0}),
    "logits processor": complete(logits_processor=PROCESSORS),
    "stopping criteria": complete(stopping_criteria=CRITERIA),
    "grammar": complete(prompt="Colours:\n", grammar=grammar(), max_tokens=40),
    "logprobs": complete(logprobs=3, max_tokens=12),
    "logprobs of a chat": chat(logprobs=True, top_logprobs=2, max_tokens=8),
    "seed": complete(temperature=0.8, seed=11),
    "top k": complete(temperature=0.9, seed=12, top_k=5),
    "top p": complete(temperature=0.9, seed=13, top_p=0.5),
    "min p": complete(temperature=1.2, seed=14, min_p=0.2),
    "typical": complete(temperature=0.9, seed=15, typical_p=0.5),
    "mirostat 1": complete(temperature=0.9, seed=16, mirostat_mode=1),
    "mirostat 2": complete(temperature=0.9, seed=17, mirostat_mode=2),
    "negative temperature": complete(temperature=-1.0, seed=18),
    "hot": complete(temperature=1.5, seed=19),
    "sampled with grammar": complete(
        prompt="Colours:\n", temperature=0.9, seed=20, grammar=grammar(), max_tokens=40
    ),
    "chat": chat(),
    "chat that ends": chat(OK_CHAT, max_tokens=60),
    "chat with a system": chat([{"role": "system", "content": "Be brief."}, *ASK]),
    "two users": chat([*ASK, *ASK]),
    "chat with a stop": chat(stop=["\n"], max_tokens=60),
    "chat sampled": chat(temperature=0.7, seed=21),
    "json object": chat(response_format={"type": "json_object"}, max_tokens=60),
    "json schema": chat(response_format={"type": "json_object", "schema": SCHEMA}, max_tokens=60),
    "tool": chat(
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=40,
    ),
    "function": chat(
        functions=[WEATHER["function"]], function_call={"name": "weather"}, max_tokens=40
    ),
    "generate": generated,
    "generate with penalties": lambda llama: generated(llama, repeat_penalty=1.2),
    "tokenize": lambda llama: llama.tokenize(EMOJI.encode(), add_bos=True, special=True),
    "detokenize": lambda llama: llama.detokenize(llama.tokenize(EMOJI.encode())),
    "sizes": lambda llama: (llama.n_ctx(), llama.n_vocab(), llama.n_embd()),
    "special tokens": lambda llama: (llama.token_bos(), llama.token_eos(), llama.token_nl()),
    "metadata": lambda llama: llama.metadata["general.architecture"],
}
STREAMED = [
    "greedy", "code", "emoji", "stop", "two stops", "grammar", "seed", "logits processor",
    "stopping criteria",
]  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_upstream_gives(
    plain: llama_cpp.Llama, racer: RacerLlama, name: str
) -> None:
    expected = without_identity(CALLS[name](plain))
    assert without_identity(CALLS[name](racer)) == expected


@pytest.mark.parametrize("name", STREAMED)
def test_a_streamed_answer_is_the_whole_one_in_pieces(racer: RacerLlama, name: str) -> None:
    options = CALLS[name].__closure__[0].cell_contents  # type: ignore[index]  # the call's own
    whole = racer.create_completion(**options)
    chunks = list(racer.create_completion(**options, stream=True))
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons[-1] == whole["choices"][0]["finish_reason"]
    assert not any(reasons[:-1])
    assert len({c["id"] for c in chunks}) == 1


def test_a_streamed_chat_has_the_text_and_form_of_upstreams(
    plain: llama_cpp.Llama, racer: RacerLlama
) -> None:
    def told(llama: Any) -> tuple[str, str, list[str]]:
        chunks = list(chat(stream=True)(llama))
        deltas = [c["choices"][0]["delta"] for c in chunks]
        text = "".join(d.get("content") or "" for d in deltas)
        return text, chunks[-1]["choices"][0]["finish_reason"], sorted(chunks[0])

    assert told(racer) == told(plain)


ODD_CHATS: dict[str, Any] = {
    "system only": [{"role": "system", "content": "Be brief."}],
    "empty": [],
    "unknown role": [{"role": "critic", "content": "Hm."}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Say hi."}]}],
    "null": [{"role": "user", "content": None}],
    "no content": [{"role": "user"}],
}


@pytest.mark.parametrize("name", ODD_CHATS)
def test_odd_messages_do_what_they_do_upstream(
    plain: llama_cpp.Llama, racer: RacerLlama, name: str
) -> None:
    def outcome(llama: Any) -> Any:
        try:
            return without_identity(chat(ODD_CHATS[name], max_tokens=8)(llama))
        except Exception as error:  # noqa: BLE001 - whatever upstream raises
            return type(error), str(error)

    expected = outcome(plain)
    assert outcome(racer) == expected


def test_drafts_were_made_and_taken_in_this_suite(racer: RacerLlama) -> None:
    racer(STEP, max_tokens=32, temperature=0)
    assert racer.last_stats is not None
    assert racer.last_stats.n_accepted > 0
    assert racer.last_stats.notices == []


def test_logprobs_of_an_echoed_prompt_belong_to_their_tokens(racer: RacerLlama) -> None:
    told = racer(STEP, max_tokens=3, temperature=0, logprobs=1, echo=True)["choices"][0]
    lists = told["logprobs"]
    assert "".join(lists["tokens"]) == told["text"]
    assert lists["token_logprobs"][0] is None
    # "open\nStep" comes again and again: the model knows the line break.
    places = [i for i, token in enumerate(lists["tokens"]) if token == "Step"]
    assert all(lists["token_logprobs"][i] > -1.5 for i in places[2:])
    assert [text[0] for text in lists["tokens"]] == [
        told["text"][offset] for offset in lists["text_offset"]
    ]


def test_openais_json_schema_format_is_understood(racer: RacerLlama) -> None:
    # Bounded, so that it ends within the limit whatever the model says.
    name = {"type": "string", "maxLength": 8}
    schema = {**SCHEMA, "properties": {"name": name, "age": {"enum": [7, 42]}}}
    response_format = {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}
    answer = racer.create_chat_completion(
        [{"role": "user", "content": "Invent a person."}],
        response_format=response_format,
        max_tokens=300,
        temperature=0,
    )
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"name", "age"}
