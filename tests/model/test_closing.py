"""A context is freed before the weights that it reads, whatever goes wrong and whoever closes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest
from inputs import open_session

from racer_local.backend.model import LlamaModel
from racer_local.backend.target import LlamaTarget
from racer_local.config import DraftConfig, ModelConfig
from racer_local.decoding.engine import Engine
from racer_local.errors import ClosedError, ConfigError, RacerError, UnsupportedModelError


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was opened and freed, in order."""
    calls: list[str] = []
    gc.collect()

    def record(name: str, label: str) -> None:
        real = getattr(llama_cpp, name)

        def call(*arguments: object) -> object:
            calls.append(label)
            return real(*arguments)

        monkeypatch.setattr(llama_cpp, name, call)

    record("llama_free", "context")
    record("llama_model_free", "model")
    return calls


@pytest.fixture
def config(tiny_path: Callable[[str], Path]) -> ModelConfig:
    return ModelConfig(path=tiny_path("llama"), n_ctx=64, n_threads=1, max_nodes=4)


def fail(*_: object) -> bool:
    raise RuntimeError("broken")


def test_a_budget_beyond_the_trees_that_were_asked_for(
    config: ModelConfig, freed: list[str]
) -> None:
    with pytest.raises(ConfigError, match="budget is 8"):
        open_session(config, DraftConfig(mode="racer", budget=8))
    assert freed == ["context", "model"]


def test_exactness_that_is_refused(
    config: ModelConfig, freed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("racer_local.measuring.exactness.probe_exact_rows", lambda target: 1)
    exact = ModelConfig(path=config.path, n_ctx=64, n_threads=1, max_nodes=4, exact=True)
    with pytest.raises(UnsupportedModelError, match="impossible here"):
        open_session(exact, DraftConfig(mode="racer", budget=4))
    assert freed == ["context", "model"]


@pytest.mark.parametrize("name", ["llama_decode", "llama_memory_seq_rm", "llama_n_threads"])
def test_a_target_that_fails_while_it_opens_frees_its_context(
    config: ModelConfig, freed: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model = LlamaModel(config)
    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, name, fail)
        with pytest.raises(RuntimeError, match="broken") as caught:
            LlamaTarget(model, config)
        # Whoever keeps the error keeps no context.
        assert caught.value is not None
        assert freed == ["context"]
    model.close()
    assert freed == ["context", "model"]


def test_closing_a_model_closes_what_is_open_on_it(config: ModelConfig, freed: list[str]) -> None:
    model = LlamaModel(config)
    targets = [LlamaTarget(model, config) for _ in range(2)]
    generation = Engine(targets[1], DraftConfig(mode="off")).generate([1, 2, 3])
    next(generation)
    model.close()
    assert freed == ["context", "context", "model"]
    for target in targets:
        assert target.is_closed
        with pytest.raises(ClosedError):
            target.prefill([1], [0])
        target.close()
    with pytest.raises(RacerError):
        next(generation)
    model.close()
    assert len(freed) == 3


def test_a_closed_context_is_not_closed_again(config: ModelConfig, freed: list[str]) -> None:
    model = LlamaModel(config)
    for _ in range(3):
        LlamaTarget(model, config).close()
    assert len(model._contexts) == 1
    model.close()
    assert freed == ["context"] * 3 + ["model"]


def test_garbage_is_freed_in_order_too(config: ModelConfig, freed: list[str]) -> None:
    for _ in range(5):
        model = LlamaModel(config)
        target = LlamaTarget(model, config)
        target.itself = [target, model]  # type: ignore[attr-defined]
        model.itself = [target, model]  # type: ignore[attr-defined]
        del target, model
        gc.collect()
    assert freed == ["context", "model"] * 5
