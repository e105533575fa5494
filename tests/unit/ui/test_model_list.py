"""What the model picker offers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from racer_local.cli.ui_package import ui_module

model_list = ui_module("model_list")


def test_the_folder_the_catalog_and_other_stores_and_bad_files_with_a_reason(
    isolated_home: Path,
    tiny_path: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("RACER_MODELS_DIR", str(tmp_path / "models"))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    (tmp_path / "models" / "mine.gguf").symlink_to(tiny_path("llama-bpe"))
    studio = isolated_home / ".lmstudio" / "models" / "someone" / "a-repo"
    studio.mkdir(parents=True)
    (studio / "theirs-Q4_1.gguf").symlink_to(tiny_path("llama-bpe"))
    choices = model_list.model_choices()
    names = [name for _, name in choices]
    assert names[0] == "mine.gguf"
    assert "smollm2-135m-instruct" in names
    assert any(name.startswith("lmstudio:") for name in names), names
    label, name = choices[-1]
    assert name == "broken.gguf"
    assert label.startswith("broken.gguf (cannot be used: it ")
    shutil.rmtree(tmp_path / "models")
    assert "mine.gguf" not in [name for _, name in model_list.model_choices()]
