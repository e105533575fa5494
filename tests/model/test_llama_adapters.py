"""LoRA adapters, embeddings and vocabularies alone, on tiny models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest
from reference import MAX_GAP, PlainLlama, assert_same_as_tiny, plain_llama
from tiny_models import HEAD_DIM, N_EMBD, N_HEAD

from racer_local import RacerLlama
from racer_local.config import SamplingConfig
from racer_local.errors import ConfigError

TEXT = "the cat and the dog and the cat and the"
OPTIONS: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
RANK = 4


def write_lora(path: Path) -> Path:
    """Write an adapter that changes what attention looks for, and thereby the text."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    generator = np.random.default_rng(1)
    a = generator.standard_normal((RANK, N_EMBD)).astype(np.float32)
    b = generator.standard_normal((N_HEAD * HEAD_DIM, RANK)).astype(np.float32)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", a)
    writer.add_tensor("blk.0.attn_q.weight.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def answer(llama: RacerLlama, **options: Any) -> list[int]:
    events = llama.stream_events(TEXT, max_tokens=40, temperature=0, **options)
    return [event.token for event in events if event.token is not None]


def test_a_lora_adapter_works_with_drafts(tiny_path: Callable[[str], Path], tmp_path: Path) -> None:
    path = str(tiny_path("llama"))
    lora = {"lora_path": str(write_lora(tmp_path / "lora.gguf")), "lora_scale": 2.0}
    plain = PlainLlama(tiny_path("llama"), 256, **lora)
    bare = RacerLlama(path, draft="racer", budget=8, **OPTIONS)
    racer = RacerLlama(path, draft="racer", budget=8, **lora, **OPTIONS)
    prompt = racer.tokenize(TEXT.encode())
    assert_same_as_tiny(plain, prompt, answer(racer))
    # More than another way of rounding.
    assert any(fork.gap > MAX_GAP for fork in plain.forks(prompt, answer(bare)))
    # A text of three tokens repeats itself, whichever they are where: drafts are taken.
    few = {token: 100.0 for token in prompt[-3:]}
    told = answer(racer, logit_bias=few)
    assert_same_as_tiny(plain, prompt, told, SamplingConfig(temperature=0, logit_bias=few))
    assert racer.last_stats is not None
    assert racer.last_stats.n_accepted > 0
    for llama in (plain, bare, racer):
        llama.close()


def test_embeddings_are_upstreams(tiny_path: Callable[[str], Path]) -> None:
    path = str(tiny_path("llama"))
    plain = llama_cpp.Llama(path, embedding=True, **OPTIONS)
    racer = RacerLlama(path, embedding=True, **OPTIONS)
    texts = ["the cat", "a dog and a cat"]
    for ours, theirs in zip(racer.embed(texts), plain.embed(texts), strict=True):
        assert np.allclose(ours, theirs, atol=1e-4)
    with pytest.raises(ConfigError, match="embedding"):
        list(racer.stream_events("the cat"))
    racer.close()
    plain.close()


def test_plain_decoding_keeps_prefixes_too(tiny_path: Callable[[str], Path]) -> None:
    racer = RacerLlama(str(tiny_path("llama")), draft="off", **OPTIONS)
    prompt = racer.tokenize(TEXT.encode())
    with plain_llama(tiny_path("llama"), 256) as plain:
        assert_same_as_tiny(plain, prompt, answer(racer))
        assert_same_as_tiny(plain, prompt, answer(racer))
    assert racer.last_stats is not None
    assert racer.last_stats.n_reused == racer.last_stats.n_prompt - 1
    assert racer.last_stats.n_drafted == 0
    racer.close()


def test_a_batch_that_is_smaller_than_the_budget_makes_smaller_trees(
    tiny_path: Callable[[str], Path],
) -> None:
    path = str(tiny_path("llama"))
    normal = RacerLlama(path, draft="racer", **OPTIONS)
    small = RacerLlama(path, draft="racer", n_batch=8, **OPTIONS)
    prompt = small.tokenize(TEXT.encode())
    with plain_llama(tiny_path("llama"), 256) as plain:
        for llama in (small, normal):
            assert_same_as_tiny(plain, prompt, answer(llama))
    assert small.last_stats is not None
    assert normal.last_stats is not None
    assert 0 < small.last_stats.n_drafted < normal.last_stats.n_drafted
    small.close()
    normal.close()
