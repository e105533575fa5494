from __future__ import annotations

from pathlib import Path

import pytest

from racer_local.config import DraftConfig, GenerationConfig, ModelConfig, SamplingConfig
from racer_local.errors import ConfigError

NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (SamplingConfig, "temperature", -0.1),
        (SamplingConfig, "temperature", NAN),
        (SamplingConfig, "temperature", float("inf")),
        (SamplingConfig, "top_k", -1),
        (SamplingConfig, "top_k", 1.5),
        (SamplingConfig, "top_p", 1.01),
        (SamplingConfig, "top_p", NAN),
        (SamplingConfig, "min_p", -1),
        (SamplingConfig, "repeat_penalty", 0.0),
        (SamplingConfig, "presence_penalty", NAN),
        (SamplingConfig, "frequency_penalty", 1e9),
        (SamplingConfig, "penalty_last_n", -2),
        (SamplingConfig, "seed", -1),
        (SamplingConfig, "seed", 2**32),
        (SamplingConfig, "logit_bias", {-1: 1.0}),
        (SamplingConfig, "logit_bias", {1: NAN}),
        (GenerationConfig, "max_tokens", 0),
        (GenerationConfig, "max_tokens", -1),
        (GenerationConfig, "max_tokens", True),
        (GenerationConfig, "stop", ("",)),
        (DraftConfig, "budget", -1),
        (DraftConfig, "budget", 256),
        (DraftConfig, "mode", "magic"),
        (DraftConfig, "min_match", 11),
        (DraftConfig, "max_nodes", 0),
    ],
)
def test_a_value_out_of_range_is_named_with_its_limits(make, field, value) -> None:
    with pytest.raises(ConfigError, match="must be"):
        make(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_ctx", -1),
        ("n_threads", 0),
        ("n_batch", 0),
        ("max_leaves", 256),
        ("device", "tpu"),
        ("kv_type", "q2"),
        ("n_gpu_layers", -2),
    ],
)
def test_a_model_setting_out_of_range_is_refused(field, value) -> None:
    with pytest.raises(ConfigError, match="must be"):
        ModelConfig(path=Path("x.gguf"), **{field: value})


def test_the_defaults_are_legal_and_greedy_is_recognised() -> None:
    assert not SamplingConfig().is_argmax
    assert SamplingConfig(temperature=0).is_argmax
    assert not SamplingConfig(temperature=0, repeat_penalty=1.1).is_argmax
    assert DraftConfig(mode="pld").max_leaves == 1
    assert DraftConfig(budget=0).max_leaves == 1
    assert DraftConfig(budget=64).max_leaves == 16
    assert DraftConfig(mode="racer", budget=64).max_leaves == 64
