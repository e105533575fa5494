"""History, dropping of old turns, files: the parts of a chat that need no model."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from racer_local.chat.conversation import Conversation, Turn, answer_room
from racer_local.chat.saved import chat_path, load_chat, save_chat
from racer_local.errors import ConfigError, ContextFullError


def tokenize(messages) -> list[int]:
    """Give a token to every character, and one to every message."""
    return [0] * sum(1 + len(message["content"]) for message in messages)


def chat_of(n_turns: int, length: int = 9) -> Conversation:
    turns = [Turn("q" * length, "a" * length) for _ in range(n_turns - 1)]
    return Conversation("sys", [*turns, Turn("q" * length)])


def test_messages_are_in_order_and_an_open_question_has_no_answer() -> None:
    chat = Conversation("be brief")
    chat.ask("one")
    chat.answer("1")
    chat.ask("two")
    assert [(m["role"], m["content"]) for m in chat.messages()] == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "1"),
        ("user", "two"),
    ]


def test_an_empty_answer_takes_the_question_back() -> None:
    chat = Conversation()
    chat.ask("one")
    chat.answer("")
    assert chat.turns == []
    with pytest.raises(ConfigError, match="empty"):
        chat.ask(" \n")
    with pytest.raises(ConfigError, match="nothing"):
        chat.reopen()


def test_what_fits_is_left_alone() -> None:
    chat = chat_of(5)
    fitted = chat.fit(tokenize, n_ctx=200, room=50)
    assert (len(fitted.tokens), fitted.n_dropped) == (4 + 9 * 10, 0)


def test_the_oldest_turns_go_several_at_once_and_stay_away() -> None:
    chat = chat_of(10)
    fitted = chat.fit(tokenize, n_ctx=150, room=30)
    assert len(fitted.tokens) <= 0.7 * 120
    assert fitted.n_dropped == chat.n_dropped == 6
    assert chat.messages()[0]["content"] == "sys"
    assert len(chat.turns) == 10
    # The next question finds room, so the start of the prompt stays as it is.
    chat.answer("a" * 9)
    chat.ask("q" * 9)
    assert chat.fit(tokenize, n_ctx=150, room=30).n_dropped == 0


def test_a_question_that_cannot_fit_changes_nothing() -> None:
    chat = chat_of(3)
    chat.turns[-1].user = "q" * 500
    with pytest.raises(ContextFullError, match="505 tokens but the context holds 150"):
        chat.fit(tokenize, n_ctx=150, room=30)
    assert chat.n_dropped == 0
    chat.take_back()
    assert chat.fit(tokenize, n_ctx=150, room=30).n_dropped == 0


def test_a_long_question_may_use_the_room_of_the_answer() -> None:
    chat = Conversation(None, [Turn("q" * 140)])
    assert len(chat.fit(tokenize, n_ctx=150, room=30).tokens) == 141


def test_the_room_for_an_answer_is_a_quarter_or_what_was_asked_for() -> None:
    assert answer_room(4096, None) == 1024
    assert answer_room(4096, 40) == 40
    assert answer_room(4096, 4000) == 1024
    assert answer_room(2, None) == 1


def test_a_saved_chat_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "chat.json"
    chat = Conversation("系统", [Turn("你好 👋", "<think>x</think>\nhi"), Turn("two", "2")])
    save_chat(path, chat, "a model")
    saved = load_chat(path)
    assert saved.conversation == chat
    assert saved.model == "a model"
    assert [p.name for p in path.parent.iterdir()] == ["chat.json"]
    if os.name != "nt":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    save_chat(path, Conversation(), "")
    assert load_chat(path).conversation == Conversation()


def test_only_saved_chats_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "thesis.json"
    path.write_text('{"mine": 1}')
    with pytest.raises(ConfigError, match="no saved chat"):
        save_chat(path, Conversation(), "")
    assert path.read_text() == '{"mine": 1}'


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        save_chat(tmp_path / "file" / "chat.json", Conversation(), "")


GOOD = {"format": "racer-local chat", "version": 1, "system": None, "turns": []}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[1",
        b"[" * 100_000,
        b"[]",
        b"{}",
        json.dumps({**GOOD, "version": 2}).encode(),
        json.dumps({**GOOD, "turns": None}).encode(),
        json.dumps({**GOOD, "turns": ["x"]}).encode(),
        json.dumps({**GOOD, "turns": [{"user": "x"}]}).encode(),
        json.dumps({**GOOD, "turns": [{"user": 1, "assistant": "x"}]}).encode(),
        json.dumps({**GOOD, "system": 1}).encode(),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"chat\.json"):
        load_chat(path)


def test_a_missing_chat_names_those_that_are_there(isolated_home: Path) -> None:
    save_chat(chat_path("holiday plans"), Conversation(), "")
    with pytest.raises(ConfigError, match="there are: holiday plans"):
        load_chat(chat_path("holidays"))


def test_names_are_kept_together_and_paths_stay_paths(isolated_home: Path, tmp_path: Path) -> None:
    assert chat_path("a").parent == chat_path("b.json").parent
    assert chat_path("a").name == "a.json"
    assert chat_path("b.json").name == "b.json"
    assert chat_path(f'"{tmp_path / "x y.json"}"') == tmp_path / "x y.json"
    assert chat_path("~/c.json") == isolated_home / "c.json"
    for bad in ("", "  ", "..", ".hidden", "x" * 300, "a\0b"):
        with pytest.raises(ConfigError):
            chat_path(bad)
