"""Words that are made while the program runs."""

from __future__ import annotations

import pytest

from racer_local.wording import counted, quoted


@pytest.mark.parametrize(
    ("n", "said"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens"), (-1, "-1 tokens")]
)
def test_one_thing_is_singular(n: int, said: str) -> None:
    assert counted(n, "token") == said


def test_foreign_names_are_shown_on_one_short_line() -> None:
    assert quoted("a b") == "'a b'"
    assert quoted("a\nb\x1b[2J") == "'a\\nb\\x1b[2J'"
    assert quoted("模型.gguf") == "'模型.gguf'"
    long = quoted("x" * 10_000)
    assert len(long) < 200
    assert "..." in long
