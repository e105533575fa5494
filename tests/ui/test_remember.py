"""Phrase books and remembered conversations behind the chat page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from racer_local.books.store import forget_memory, memory_path
from racer_local.cli.ui_package import ui_module
from racer_local.config import DraftConfig, GenerationConfig, ModelConfig, SamplingConfig
from racer_local.errors import ConfigError
from racer_local.gguf.fingerprint import tokenizer_fingerprint

services = ui_module("service")


def say(service: Any, text: str, *said: dict[str, str], session: str = "tab") -> Any:
    ask = services.Ask(
        messages=[*said, {"role": "user", "content": text}],
        sampling=SamplingConfig(temperature=0),
        limits=GenerationConfig(max_tokens=8),
        draft=DraftConfig(),
    )
    with service.take_turn(session) as turn:
        turn.wait(300)
        *_, answer = service.answer(ask, turn)
    assert not answer.error
    return answer


def test_conversations_are_kept_once_they_are_over_and_only_if_asked_for(
    isolated_home: Path, smol_path: Path
) -> None:
    config = ModelConfig(path=smol_path, n_ctx=512)
    path = memory_path(tokenizer_fingerprint(smol_path))
    with services.PageService(config) as service:
        say(service, "Name a colour.")
        service.leave("tab")
        assert not service.facts.remembers
        service.load(lambda share: None, remembers=True)
        assert service.facts.remembers
        assert any(str(path) in notice for notice in service.facts.notices)
        said = {"role": "user", "content": "Name a river."}
        answer = say(service, "Name a river.")
        say(service, "And another.", said, {"role": "assistant", "content": answer.text})
        # It goes on.
        assert not path.exists()
        say(service, "Something else altogether: who are you?")
        with service.take_turn("tab") as turn:
            assert turn.wait(300)
            service.work(turn, lambda model: None).result(300)
        assert path.exists()
        before = path.read_bytes()
        service.load(lambda share: None, remembers=False)
        say(service, "Name a tree.")
        service.leave("tab")
    # What was said after the first, and before it was switched off, had not ended.
    assert path.read_bytes() == before
    assert forget_memory() == [path]
    with services.PageService(config, remembers=True) as service:
        say(service, "Name a tree.")
    assert path.exists()


def test_books_of_another_tokenizer_are_left_out_for_a_model_chosen_later(
    isolated_home: Path, smol_path: Path, gemma_path: Path, tmp_path: Path
) -> None:
    from racer_local.cli import main

    (tmp_path / "a.md").write_text("Some text that may be quoted. " * 40, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["index", str(tmp_path / "a.md"), "-o", "mine", "--model", str(smol_path)])
    assert not ended.value.code
    config = ModelConfig(path=smol_path, n_ctx=512)
    with services.PageService(config, books=["mine"]) as service:
        assert any("phrase books too: mine" in notice for notice in service.facts.notices)
        service.load(lambda share: None, path=gemma_path)
        assert any("of another tokenizer" in notice for notice in service.facts.notices)
        service.load(lambda share: None, path=smol_path)
        assert any("phrase books too: mine" in notice for notice in service.facts.notices)
    with pytest.raises(ConfigError, match="no phrase book"):
        services.PageService(config, books=["missing"])
