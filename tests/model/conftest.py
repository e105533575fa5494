"""Models that are opened once for many tests. Tests leave them empty-handed: see ``fresh``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from inputs import open_session
from reference import PlainLlama, plain_llama

from racer_local.config import ModelConfig
from racer_local.decoding.session import Session


@pytest.fixture(autouse=True)
def _costs_are_known(known_costs: None) -> None:
    """Spare each load the measuring of step costs."""


@pytest.fixture(scope="session")
def smol_plain(smol_path: Path) -> Iterator[PlainLlama]:
    with plain_llama(smol_path) as plain:
        yield plain


@pytest.fixture(scope="session")
def gemma_plain(gemma_path: Path) -> Iterator[PlainLlama]:
    with plain_llama(gemma_path) as plain:
        yield plain


@pytest.fixture(scope="session")
def smol_model(smol_path: Path) -> Iterator[Session]:
    # Room for trees of every mode and shape.
    with open_session(ModelConfig(path=smol_path, n_ctx=2048, max_leaves=64)) as model:
        yield model


@pytest.fixture(scope="session")
def gemma_model(gemma_path: Path) -> Iterator[Session]:
    with open_session(ModelConfig(path=gemma_path, n_ctx=2048, max_leaves=64)) as model:
        yield model


@pytest.fixture
def smol(smol_model: Session) -> Session:
    smol_model.engine.forget()
    return smol_model


@pytest.fixture
def gemma(gemma_model: Session) -> Session:
    gemma_model.engine.forget()
    return gemma_model
