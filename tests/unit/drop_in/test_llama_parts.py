"""The pure parts of ``RacerLlama``: log probabilities, shapes, long chats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import llama_cpp
import numpy as np
import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from racer_local.drop_in.chat import needed_criteria
from racer_local.drop_in.responses import LogprobsFormat, Response
from racer_local.speculation.logprobs import TokenLogprobs, log_probs

WORDS = {0: b"<s>", 1: b"a", 2: b" b", 3: "é".encode()}


def piece(token: int, _before: object) -> bytes:
    return WORDS[token]


def test_log_probabilities_are_those_of_the_softmax() -> None:
    row = np.array([1.0, 3.0, -50.0, 2.0], np.float32)
    told = log_probs(row, 0, 2)
    expected = row.astype(float) - np.log(np.exp(row.astype(float)).sum())
    assert told.token == 0
    assert told.logprob == pytest.approx(expected[0], abs=1e-6)
    assert [token for token, _ in told.top] == [1, 3]
    assert told.top[0][1] == pytest.approx(expected[1], abs=1e-6)
    far = log_probs(row + 3000, 0, 0)
    assert far == TokenLogprobs(0, far.logprob, ())
    assert far.logprob == pytest.approx(told.logprob, abs=1e-6)


def test_entries_have_offsets_in_characters_and_leave_bos_out() -> None:
    entries = LogprobsFormat(piece, 0, 10)
    first = entries.write([(0, None), (3, TokenLogprobs(3, -1.0, ((1, -0.5),)))])
    assert first == {
        "tokens": ["é"],
        "text_offset": [13],
        "token_logprobs": [-1.0],
        "top_logprobs": [{"a": -0.5, "é": -1.0}],
    }
    second = entries.write([(2, TokenLogprobs(2, -2.0, ()))])
    assert second is not None
    assert second["text_offset"] == [14]
    assert entries.write([]) is None


def test_all_parts_of_an_answer_have_one_identity() -> None:
    response = Response("m")
    chunk = response.chunk("x")
    whole = response.whole("x", None, "stop", n_prompt=3, n_answer=2)
    assert chunk["id"] == whole["id"]
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert chunk["choices"][0]["finish_reason"] is None


def test_a_chat_keeps_criteria_but_not_upstreams_own() -> None:
    template = "{{ messages[0].content }}"
    formatter = Jinja2ChatFormatter(template, "</s>", "<s>", stop_token_ids=[2])
    upstreams = formatter(messages=[{"role": "user", "content": "a"}]).stopping_criteria
    model, other = SimpleNamespace(chat_handler=None), SimpleNamespace(chat_handler=formatter)

    def mine(tokens: Any, logits: Any) -> bool:
        return False

    mixed = llama_cpp.StoppingCriteriaList([mine, *upstreams])
    assert needed_criteria(model, None) == []
    assert needed_criteria(model, upstreams) == []
    assert needed_criteria(model, mixed) == [mine]
    assert needed_criteria(model, mine) == [mine]
    assert needed_criteria(other, mixed) == [mixed]
