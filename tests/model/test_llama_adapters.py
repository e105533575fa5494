"""LoRA adapters, embeddings and vocabularies alone, on tiny models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest
from tiny_models import HEAD_DIM, N_EMBD, N_HEAD

from racer_local import RacerLlama
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


def answer(llama: llama_cpp.Llama) -> str:
    text: str = llama(TEXT, max_tokens=40, temperature=0)["choices"][0]["text"]
    return text


def test_a_lora_adapter_works_with_drafts(tiny_path: Callable[[str], Path], tmp_path: Path) -> None:
    path = str(tiny_path("llama"))
    lora = {"lora_path": str(write_lora(tmp_path / "lora.gguf")), "lora_scale": 2.0}
    plain = llama_cpp.Llama(path, flash_attn=True, **lora, **OPTIONS)
    bare = RacerLlama(path, draft="racer", budget=8, **OPTIONS)
    racer = RacerLlama(path, draft="racer", budget=8, **lora, **OPTIONS)
    expected = answer(plain)
    assert answer(racer) == expected
    assert answer(bare) != expected
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
    first = answer(racer)
    assert answer(racer) == first
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
    assert answer(small) == answer(normal)
    small.close()
    normal.close()
