"""Fixtures for all tests: models, an isolated home, steady property tests.

``tiny_path("mamba")`` is the path of a random model a few hundred kilobytes large
(``tiny_models.py``); ``smol_path`` and ``gemma_path`` are real models, fetched when missing.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
import pytest
from hypothesis import settings

REAL_MODEL_FIXTURES = frozenset({"smol_path", "gemma_path"})

# Variables that say where models are, ours and other programs'.
FOREIGN = ("RACER_", "HF_", "HUGGINGFACE_", "LLAMA_", "OLLAMA_")

# No deadline: a busy machine must not fail a test. Set RACER_HYPOTHESIS=explore for fresh
# random examples in each run.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("RACER_HYPOTHESIS", "steady"))


def pytest_report_header() -> str:
    names = ("llama-cpp-python", "numpy", "gguf", "hypothesis")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Whoever takes a real model needs a real model: `-m "not model"` then works by itself.
    for item in items:
        if REAL_MODEL_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.model)


@pytest.fixture(autouse=True)
def isolated_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Give each test its own empty home, so that no user file is read or written."""
    home = tmp_path_factory.mktemp("home")
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    for name, folder in (
        ("XDG_CACHE_HOME", ".cache"),
        ("XDG_CONFIG_HOME", ".config"),
        ("XDG_DATA_HOME", ".local/share"),
        ("XDG_STATE_HOME", ".local/state"),
        ("LOCALAPPDATA", "AppData/Local"),
        ("APPDATA", "AppData/Roaming"),
    ):
        monkeypatch.setenv(name, str(home / folder))
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        if name == "RACER_MODELS_DIR":
            continue
        monkeypatch.delenv(name)
    return home


@pytest.fixture(scope="session")
def _costs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("costs")


@pytest.fixture
def known_costs(
    isolated_home: Path, _costs_folder: Path, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Keep step costs and exact rows from test to test, for those that are not about them.

    Otherwise every first load of a real model takes five seconds to measure them. What was measured
    in a program that a test has changed is not kept.
    """
    here = platformdirs.user_cache_path("racer-local", appauthor=False) / "costs"
    shutil.copytree(_costs_folder, here)
    yield
    if "monkeypatch" not in inspect.signature(request.function).parameters:
        for path in here.glob("*.json"):
            shutil.copy2(path, _costs_folder)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from the name of a tiny model to its file, written on first use."""
    from tiny_models import TINY_WRITERS

    folder = tmp_path_factory.mktemp("tiny")

    def path_of(name: str) -> Path:
        path = folder / f"tiny-{name}.gguf"
        return path if path.exists() else TINY_WRITERS[name](path)

    return path_of


@pytest.fixture(scope="session")
def smol_path() -> Path:
    """Return the default model, SmolLM2-135M-Instruct Q4_1."""
    from racer_local.models.store import ensure_model

    return ensure_model("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Return Gemma 3 270M Q4_K_M: sliding window, 262k tokens, no chat template."""
    from racer_local.models.store import ensure_model

    return ensure_model("gemma-3-270m")
