"""What is typed, what is reasoning, what is set: read without a model."""

from __future__ import annotations

import pytest

from racer_local.chat.entry import Entry, entries, is_unfinished, parse_entry
from racer_local.chat.reasoning import ReasoningScanner
from racer_local.chat.settings import SETTING_NAMES, ChatSettings
from racer_local.cli.chat_screen import visible
from racer_local.config import GenerationConfig, SamplingConfig
from racer_local.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("hello", Entry("", "hello")),
        ("  indented\ncode", Entry("", "  indented\ncode")),
        ("/help", Entry("help", "")),
        ("/? ", Entry("?", "")),
        ("/SET temp 0", Entry("set", "temp 0")),
        ("/usr/bin/env is a path", Entry("", "/usr/bin/env is a path")),
        ("/ alone", Entry("", "/ alone")),
        ('"""one"""', Entry("", "one")),
        ('"""\none\n two\n"""', Entry("", "one\n two")),
        ('"""/help"""', Entry("", "/help")),
        ('/system """\nBe brief.\nBe kind."""', Entry("system", "Be brief.\nBe kind.")),
        ("/system one\ntwo", Entry("system", "one\ntwo")),
        ('"""never closed', Entry("", "never closed")),
    ],
)
def test_entries_are_text_or_commands(text: str, entry: Entry) -> None:
    assert parse_entry(text) == entry


def test_a_text_is_open_until_its_quotes_are_closed() -> None:
    assert is_unfinished('"""a')
    assert is_unfinished('/system """a\nb')
    assert not is_unfinished('"""a\n"""')
    assert not is_unfinished('say """')
    assert not is_unfinished("")


def test_lines_are_joined_between_quotes() -> None:
    lines = ["one\r\n", '"""two\n', "\n", 'three"""\n', "/help\n", '"""open\n', "end"]
    assert list(entries(lines)) == ["one", '"""two\n\nthree"""', "/help", '"""open\nend']


def split(text: str, n: int, prompt_end: str = "") -> tuple[str, str]:
    scanner = ReasoningScanner(prompt_end)
    pieces = []
    for at in range(0, len(text), n):
        pieces += scanner.push(text[at : at + n])
    pieces += scanner.flush()
    assert "".join(piece for piece, _ in pieces) == text
    return (
        "".join(piece for piece, is_reasoning in pieces if is_reasoning),
        "".join(piece for piece, is_reasoning in pieces if not is_reasoning),
    )


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "reasoning", "prompt_end"),
    [
        ("plain answer", "", ""),
        ("<think>\nhm</think>\n\n42", "<think>\nhm</think>", ""),
        ("\n[THINK]a < b[/THINK]42", "\n[THINK]a < b[/THINK]", ""),
        ("hm</think>42", "hm</think>", "<|assistant|>\n<think>\n"),
        ("<think>cut off </thin", "<think>cut off </thin", ""),
        ("the tag <think> opens it", "", ""),
        ("<think>a</think>b<think>c</think>", "<think>a</think>", ""),
        ("<thin", "", ""),
        ("", "", ""),
    ],
)
def test_reasoning_is_told_apart_however_the_text_arrives(
    text: str, reasoning: str, prompt_end: str, n: int
) -> None:
    assert split(text, n, prompt_end) == (reasoning, text[len(reasoning) :])


SETTINGS = ChatSettings(SamplingConfig(), GenerationConfig())


def test_every_setting_can_be_set_and_is_listed() -> None:
    settings = SETTINGS
    values = {"stop": "END", "seed": "7", "max-tokens": "9", "top-k": "3"}
    for name in SETTING_NAMES:
        settings = settings.changed(name, values.get(name, "0.5"))
    assert settings.sampling.temperature == settings.sampling.min_p == 0.5
    assert (settings.sampling.seed, settings.sampling.top_k) == (7, 3)
    assert (settings.limits.max_tokens, settings.limits.stop) == (9, ("END",))
    assert [name for name, _ in settings.describe()] == list(SETTING_NAMES)
    back = settings.changed("seed", "none").changed("max_tokens", "none").changed("STOP", "none")
    assert (back.sampling.seed, back.limits) == (None, GenerationConfig())


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("temp", "warm", "must be a number"),
        ("temp", "-1", "must be a number from 0"),
        ("temp", "nan", "must be"),
        ("top-k", "1.5", "whole number"),
        ("seed", "-1", "seed is -1"),
        ("heat", "1", "there are: temp"),
        ("max-tokens", "0", "must be"),
        ("temp", "none", "must be a number"),
    ],
)
def test_a_bad_setting_says_what_is_possible(name: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        SETTINGS.changed(name, value)


def test_a_terminal_is_shown_controls_but_never_obeys_them() -> None:
    assert visible("a\tb\n\x1b[2J\x07\x9b31m\x7f\r") == "a\tb\n␛[2J␇\ufffd31m␡␍"
    assert visible("你好 🎉") == "你好 🎉"
