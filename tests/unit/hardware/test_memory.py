"""Memory is estimated from the header, and what cannot fit is refused with advice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from racer_local.config import ModelConfig
from racer_local.errors import ModelLoadError
from racer_local.gguf.header import inspect_gguf
from racer_local.hardware import memory
from racer_local.hardware.memory import (
    available_bytes,
    context_size,
    estimate_memory,
    expected_kv_type,
    largest_context,
    require_memory,
)


@pytest.fixture
def info(tiny_path):
    return inspect_gguf(tiny_path("llama"))


def test_the_cache_grows_with_the_context_and_the_element_type(info) -> None:
    one, two = (estimate_memory(info, n, "f16") for n in (1024, 2048))
    # 2 layers, keys and values, 2 heads of 32 elements, 2 bytes each.
    m = info.metadata
    heads = m["llama.attention.head_count_kv"] * (
        m["llama.attention.key_length"] + m["llama.attention.value_length"]
    )
    assert one.context == 1024 * m["llama.block_count"] * heads * 2
    assert two.context == 2 * one.context
    assert estimate_memory(info, 1024, "f32").context == 2 * one.context
    assert one.weights == info.size_bytes
    assert one.total == one.weights + one.context + one.work


def test_the_context_is_the_one_that_will_be_opened(info) -> None:
    assert context_size(info, None) == min(4096, info.context_length)
    assert context_size(info, 0) == info.context_length
    assert context_size(info, 99_999) == 99_999
    assert context_size(replace(info, context_length=None), 0) == 4096


def test_absurd_numbers_in_a_header_do_not_break_it(info) -> None:
    for value in (-1, 0, 2**63, "many", True, 1e300):
        odd = {key: value for key in info.metadata}
        estimate = estimate_memory(replace(info, metadata=odd), 4096, "f16")
        assert estimate.context >= 0
        assert estimate.total > 0
    assert estimate_memory(replace(info, metadata={}, n_vocab=None), 4096, "q8_0").total > 0


def test_the_largest_context_fits_and_the_next_does_not(info) -> None:
    info = replace(info, context_length=1 << 20)
    free = estimate_memory(info, 300 * 1024, "q8_0").total
    assert largest_context(info, free, "q8_0") == 300 * 1024
    assert largest_context(info, 0, "q8_0") == 0
    assert largest_context(info, 1 << 60, "q8_0") == 1 << 20


def test_what_fits_passes_and_what_does_not_gets_advice(tiny_path) -> None:
    path = tiny_path("llama")
    info = inspect_gguf(path)
    require_memory(ModelConfig(path=path, device="cpu"))
    needed = estimate_memory(info, 1 << 24, "q8_0").total
    with pytest.raises(ModelLoadError, match=r"16,777,216 tokens.*fit \(--ctx \d+\)") as caught:
        require_memory(ModelConfig(path=path, n_ctx=1 << 24, device="cpu"), needed // 2)
    assert "--no-memory-check" in str(caught.value)
    with pytest.raises(ModelLoadError, match="smaller quantization"):
        require_memory(ModelConfig(path=path, device="cpu"), 1 << 20)


def test_a_graphics_card_with_its_own_memory_is_not_judged(
    tiny_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig(path=tiny_path("llama"))
    monkeypatch.setattr(memory, "gpu_backends", lambda: frozenset({"cuda"}))
    require_memory(config, 1)
    for judged in (replace(config, device="cpu"), replace(config, n_gpu_layers=0)):
        with pytest.raises(ModelLoadError, match="memory"):
            require_memory(judged, 1)
    # Apple's GPU shares the memory.
    monkeypatch.setattr(memory, "gpu_backends", lambda: frozenset({"metal"}))
    with pytest.raises(ModelLoadError, match="memory"):
        require_memory(config, 1)


def test_the_cache_is_estimated_in_the_type_it_will_have(
    info, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig(path=info.path)
    monkeypatch.setattr(memory, "gpu_backends", frozenset)
    assert expected_kv_type(info, config) == "q8_0"
    assert expected_kv_type(info, replace(config, kv_type="f32")) == "f32"
    odd = replace(info, metadata={**info.metadata, f"{info.arch}.attention.key_length": 80})
    assert expected_kv_type(odd, config) == "f16"
    monkeypatch.setattr(memory, "gpu_backends", lambda: frozenset({"metal"}))
    assert expected_kv_type(info, config) == "f16"
    assert expected_kv_type(info, replace(config, exact=True)) == "q8_0"
    assert expected_kv_type(info, replace(config, device="cpu")) == "q8_0"


def test_a_card_that_is_too_small_for_all_layers_is_told_before_loading(
    tiny_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig(path=tiny_path("llama"))
    monkeypatch.setattr(memory, "gpu_backends", lambda: frozenset({"cuda"}))
    require_memory(config, 1, gpu_bytes=1 << 40)
    require_memory(replace(config, n_gpu_layers=1), 1, gpu_bytes=1)
    with pytest.raises(ModelLoadError, match="graphics card; put fewer layers"):
        require_memory(config, 1 << 40, gpu_bytes=1)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    machine = available_bytes(tmp_path)
    assert machine > 0
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    assert available_bytes(tmp_path) == 100_000
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 300000\nactive_file 100000\n")
    assert available_bytes(tmp_path) == 500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == pytest.approx(machine, rel=0.5)
    old = tmp_path / "v1" / "memory"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("1000")
    (old / "memory.usage_in_bytes").write_text("2000")
    assert available_bytes(tmp_path / "v1") == 0
