"""``exact``: the very tokens of plain decoding, on a real model, whatever was drafted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import llama_cpp
import pytest
from adversaries import AlwaysRight, AlwaysWrong, RightPathLast
from inputs import GREEDY, PROMPTS, generate, open_session
from reference import PlainLlama

from racer_local.backend import target as target_module
from racer_local.bench.suites import choose
from racer_local.config import DraftConfig, ModelConfig, SamplingConfig
from racer_local.decoding.session import Session
from racer_local.errors import ConfigError, UnsupportedModelError
from racer_local.measuring.exactness import probe_exact_rows
from racer_local.verification.prompts import spread_prompts

OFF = DraftConfig(mode="off")
DRAFTS = {
    "auto": DraftConfig(),
    "racer": DraftConfig(mode="racer", budget=16),
    "logits": DraftConfig(mode="logits"),
    "pld": DraftConfig(mode="pld", budget=4),
}
SEEDED = SamplingConfig(
    temperature=0.8, top_p=0.95, repeat_penalty=1.1, frequency_penalty=0.1, seed=7
)


@pytest.fixture(scope="module")
def exact_model(smol_path: Path) -> Iterator[Session]:
    with open_session(ModelConfig(path=smol_path, n_ctx=2048, exact=True)) as model:
        yield model


@pytest.fixture
def exact(exact_model: Session) -> Session:
    exact_model.engine.forget()
    return exact_model


@pytest.fixture(scope="module")
def q8_plain(smol_path: Path) -> Iterator[PlainLlama]:
    plain = PlainLlama(smol_path, type_k=llama_cpp.GGML_TYPE_Q8_0, type_v=llama_cpp.GGML_TYPE_Q8_0)
    yield plain
    plain.close()


def fresh(model: Session, prompt: list[int], n: int, draft, sampling=GREEDY) -> list[int]:
    model.engine.forget()
    return generate(model, prompt, n, draft, sampling)[0]


def test_the_default_model_is_exact_up_to_sixteen_rows_or_more(exact: Session) -> None:
    assert exact.target.max_nodes >= 15
    assert exact.engine.drafter.budget == exact.target.max_nodes


def test_the_cap_is_the_same_every_time(exact: Session) -> None:
    n_rows = exact.target.max_nodes + 1
    assert [probe_exact_rows(exact.target) for _ in range(2)] == [n_rows, n_rows]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_exact_text_is_that_of_plain_decoding_token_by_token(
    exact: Session, q8_plain: PlainLlama, sampling: SamplingConfig
) -> None:
    for number, text in enumerate(PROMPTS[::20]):
        prompt = exact.chat_tokens([{"role": "user", "content": text}])
        plain = fresh(exact, prompt, 64, OFF, sampling)
        if sampling is GREEDY:
            assert plain == q8_plain.greedy(prompt, 64)
        name = list(DRAFTS)[number % len(DRAFTS)]
        assert fresh(exact, prompt, 64, DRAFTS[name], sampling) == plain, (name, text)


def test_a_long_prompt_is_exact_too(exact: Session, q8_plain: PlainLlama) -> None:
    [text] = choose(["rag"], 1)
    prompt = exact.chat_tokens([{"role": "user", "content": text.turns[0]}])[:640]
    assert len(prompt) > 600
    plain = fresh(exact, prompt, 48, OFF)
    assert plain == q8_plain.greedy(prompt, 48)
    for draft in (DRAFTS["auto"], DRAFTS["racer"]):
        assert fresh(exact, prompt, 48, draft) == plain


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_all_lengths_and_languages_are_exact(smol_path: Path, sampling: SamplingConfig) -> None:
    """A part of what ``verify --full`` does: prompts of up to 3,500 tokens, 256 tokens each."""
    with open_session(ModelConfig(path=smol_path, n_ctx=4096, exact=True)) as model:
        for number, prompt in enumerate(spread_prompts(model, 12, 3500, as_chat=True)):
            plain = fresh(model, prompt, 256, OFF, sampling)
            for name in ("auto", "racer"):
                assert fresh(model, prompt, 256, DRAFTS[name], sampling) == plain, (name, number)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_no_drafter_can_spoil_exactness(exact: Session, sampling: SamplingConfig) -> None:
    [text] = choose(["summarization"], 1)
    # The answer begins before the 512th cell, where attention changes its path, and ends after it.
    prompt = exact.chat_tokens([{"role": "user", "content": text.turns[0]}])[-496:]
    plain = fresh(exact, prompt, 40, OFF, sampling)
    for adversary in (RightPathLast, AlwaysWrong, AlwaysRight):
        exact.engine.forget()
        exact.engine.use(adversary(prompt, plain))
        assert generate(exact, prompt, 40, None, sampling)[0] == plain, adversary


def test_the_same_requests_in_the_same_order_stay_exact(exact: Session) -> None:
    """Prompts that continue the text in the cache are read from where it ends."""
    answers = {}
    for name in ("off", "auto", "racer"):
        exact.engine.forget()
        exact.engine.use(DRAFTS.get(name, OFF))
        chat = []
        answers[name] = []
        for number, text in enumerate(PROMPTS[:4]):
            chat.append({"role": "user", "content": text})
            prompt = exact.chat_tokens(chat)
            generation = exact.engine.generate(prompt, GREEDY)
            # Left in the middle of an answer, and of a step.
            tokens = [next(generation).token for _ in range(20 + 3 * number)]
            generation.close()
            answers[name].append(tokens)
            said = b"".join(map(exact.model.piece, tokens)).decode("utf-8", "replace")
            chat.append({"role": "assistant", "content": said})
    assert answers["auto"] == answers["off"]
    assert answers["racer"] == answers["off"]


def test_a_context_opened_without_drafts_gives_the_same_text(
    smol_path: Path, exact: Session
) -> None:
    prompt = exact.chat_tokens([{"role": "user", "content": PROMPTS[0]}])
    config = ModelConfig(path=smol_path, n_ctx=2048, exact=True, max_nodes=0, max_leaves=1)
    with open_session(config, OFF) as plain:
        expected = generate(plain, prompt, 64)[0]
    assert fresh(exact, prompt, 64, DRAFTS["auto"]) == expected


def test_a_k_quant_is_exact_in_smaller_trees(gemma_path: Path) -> None:
    config = ModelConfig(path=gemma_path, n_ctx=1024, exact=True)
    with open_session(config, DraftConfig(mode="racer", budget=16)) as model:
        assert model.target.max_nodes >= 1
        prompt = model.prompt_tokens("The quick brown fox jumps over the lazy dog. " * 8)
        drafted = generate(model, prompt, 48)[0]
        assert drafted == fresh(model, prompt, 48, OFF)


def test_a_contradictory_cache_type_is_refused(smol_path: Path) -> None:
    for kv_type in ("f16", "f32"):
        with pytest.raises(ConfigError, match="q8_0"):
            ModelConfig(path=smol_path, exact=True, kv_type=kv_type)


def test_a_model_whose_cache_cannot_be_q8_0_is_refused(
    smol_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where a device has no flash attention: a quantized cache cannot be opened without it.
    for name in ("_FLASH_ATTN_ON", "_FLASH_ATTN_AUTO"):
        monkeypatch.setattr(target_module, name, 0)
    with pytest.raises(UnsupportedModelError, match="q8_0"):
        open_session(ModelConfig(path=smol_path, n_ctx=256, exact=True)).close()


def test_a_model_that_cannot_branch_is_plain_and_so_exact(
    tiny_path: Callable[[str], Path],
) -> None:
    with open_session(ModelConfig(path=tiny_path("mamba"), n_ctx=256, exact=True)) as model:
        assert model.target.max_nodes == 0
        assert any("drafting is off" in notice for notice in model.notices)
