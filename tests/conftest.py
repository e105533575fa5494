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

# Threads of llama.cpp that wait for each other sleep, here and in processes that tests start: where
# other programs want the processor too, waiting in a loop makes decoding ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

REAL_MODEL_FIXTURES = frozenset({"smol_path", "gemma_path"})

# Variables that say where models are, ours and other programs'.
FOREIGN = ("RACER_", "HF_", "HUGGINGFACE_", "LLAMA_", "OLLAMA_")
KEPT = frozenset({"RACER_MODELS_DIR", "RACER_BROWSER"})

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


def _live_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
        if name not in KEPT:
            monkeypatch.delenv(name)
    return home


def _costs_folder() -> Path:
    return platformdirs.user_cache_path("racer-local", appauthor=False) / "costs"


def _copy_costs(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.json"):
        shutil.copy2(path, target)


@pytest.fixture(scope="session", autouse=True)
def session_costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give whatever lives longer than a test a home; return the folder of step costs there."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _live_in(tmp_path_factory.mktemp("session-home"), monkeypatch)
        folder = _costs_folder()
        folder.mkdir(parents=True)
        yield folder


@pytest.fixture(autouse=True)
def isolated_home(
    session_costs: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Give each test its own empty home, so that no user file is read or written."""
    return _live_in(tmp_path_factory.mktemp("home"), monkeypatch)


@pytest.fixture
def known_costs(
    isolated_home: Path, session_costs: Path, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Keep step costs and exact rows from test to test, for those that are not about them.

    Otherwise every first load of a real model takes five seconds to measure them. What was measured
    in a program that a test has changed is not kept.
    """
    here = _costs_folder()
    _copy_costs(session_costs, here)
    yield
    if "monkeypatch" not in inspect.signature(request.function).parameters:
        _copy_costs(here, session_costs)


@pytest.fixture
def level_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``auto`` believe that steps of any size take about as long, whatever the clock says.

    It then drafts whatever may be taken, and what that is depends on the text alone.
    """
    from racer_local.measuring.cost import CostModel
    from racer_local.measuring.cost_store import CostStore

    # In seconds: no machine is so slow that it would seem a loss.
    cost = CostModel.of_curve(lambda n: 1000 * (0.95 + 0.05 * n))
    monkeypatch.setattr(CostStore, "load", lambda self: cost)
    monkeypatch.setattr(CostStore, "save", lambda self, cost: None)


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
