"""Growing answers, sent past Gradio."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from racer_local.cli.ui_package import ui_module
from racer_local.speculation.tree import Source

answers = ui_module("answer")
live = pytest.importorskip("fastapi") and ui_module("live")


def piece(text: str) -> answers.Piece:
    return answers.Piece(text, Source.TARGET, 1)


def test_a_follower_gets_the_whole_text_in_parts_and_then_the_end() -> None:
    async def follow() -> list[str]:
        growing, answer = live.LiveAnswers(), answers.LiveAnswer()
        name = growing.open(answer)
        assert growing.find(name) is answer
        answer.pieces += [piece("one "), piece("two ")]
        texts = []
        async for line in growing.lines(name, answer):
            assert growing.is_followed(name)
            assert line.endswith("\n")
            texts.append(json.loads(line)["text"])
            if len(texts) == 1:
                answer.pieces.append(piece("🤖\n"))
                answer.done.set()
        assert not growing.is_followed(name)
        growing.close(name)
        assert growing.find(name) is None
        return texts

    assert asyncio.run(follow()) == ["one two ", "🤖\n"]


def test_names_cannot_be_guessed_and_what_is_shown_is_counted_as_browsers_count() -> None:
    growing = live.LiveAnswers()
    names = {growing.open(answers.LiveAnswer()) for _ in range(100)}
    assert len(names) == 100
    assert min(map(len, names)) >= 20
    assert re.search(r'data-from="4"', live.mark("x", "a🤖b"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("no end", ""),
        ("one\n\ntwo", "one\n\n"),
        ("one\n\n\ntwo\n \nthree\n", "one\n\n\ntwo\n \n"),
        ("a\n\n```python\nx\n\ny", "a\n\n"),
        ("a\n\n```python\nx\n\ny\n```\n\nb", "a\n\n```python\nx\n\ny\n```\n\n"),
        ("~~~\n```\n\n~~~\n\nb", "~~~\n```\n\n~~~\n\n"),
    ],
)
def test_what_is_settled_ends_with_a_blank_line_outside_code(text: str, expected: str) -> None:
    assert live.settled(text) == expected
