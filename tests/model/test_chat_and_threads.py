"""Odd conversations, and many threads on one model."""

from __future__ import annotations

import threading

import pytest
from inputs import GREEDY, STEP, generate

from racer_local.config import DraftConfig, GenerationConfig
from racer_local.decoding.session import Session
from racer_local.errors import ConfigError

HI = {"role": "user", "content": "Say hi."}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "You are terse."}, HI],
        [HI, HI],
        [{"role": "system", "content": "You are terse."}],
        [{"role": "narrator", "content": "It rains."}, HI],
        [{"role": "user", "content": "你好 👋 \u202eabc\u202c"}],
        [{"role": "user", "content": ""}],
    ],
)
def test_odd_conversations_are_rendered_by_the_models_own_template(
    smol: Session, messages: list[dict[str, str]]
) -> None:
    tokens = smol.chat_tokens(messages)
    text = b"".join(smol.model.piece(token, special=True) for token in tokens).decode()
    assert text.endswith("<|im_start|>assistant\n")
    assert all(message["content"] in text for message in messages)


@pytest.mark.parametrize(
    "messages", [[], [{"content": "no role"}], [{"role": "user", "content": None}], ["text"]]
)
def test_what_a_template_cannot_render_is_a_clear_error(smol: Session, messages) -> None:
    with pytest.raises(ConfigError, match="conversation"):
        smol.chat_tokens(messages)


def test_a_file_without_a_chat_template_says_so(gemma: Session) -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        gemma.chat_tokens([HI])


def test_text_with_a_lone_surrogate_is_refused(smol: Session) -> None:
    with pytest.raises(ConfigError, match="lone surrogate at character 1"):
        smol.prompt_tokens("a\ud800b")


def test_threads_on_one_model_get_the_answers_of_a_single_thread(smol: Session) -> None:
    draft = DraftConfig(mode="pld", budget=8)
    prompts = [smol.prompt_tokens(f"{i} {i} {i} " + STEP[i:]) for i in range(4)]
    expected = []
    for prompt in prompts:
        expected.append(generate(smol, prompt, 12, draft)[0])
        smol.engine.forget()
    answers: dict[tuple[int, int], list[int]] = {}

    def work(i: int) -> None:
        for n in range(5):
            stream = smol.stream(prompts[i], GREEDY, GenerationConfig(max_tokens=12))
            for _ in stream:
                pass
            answers[i, n] = stream.tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {(i, n): expected[i] for i in range(4) for n in range(5)}
