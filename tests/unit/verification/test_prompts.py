"""Prompts of all lengths and languages, whenever one stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from racer_local.verification.prompts import SHORTEST, spread_prompts

N_TEMPLATE = 30


class Characters:
    """Stands for a model: every character is a token, and a template takes thirty."""

    def prompt_tokens(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def chat_tokens(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        [message] = messages
        return [0] * N_TEMPLATE + self.prompt_tokens(message["content"])


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return spread_prompts(Characters(), 100, 3500, as_chat=True)


def kind_of(prompt: list[int]) -> str:
    text = "".join(map(chr, prompt))
    if any("\u4e00" <= character <= "\u9fff" for character in text):
        return "Chinese"
    return "code" if "code" in text.lower() or "def " in text or "import " in text else "English"


def test_lengths_lie_evenly_between_the_shortest_and_the_longest(prompts: list[list[int]]) -> None:
    lengths = [len(prompt) for prompt in prompts]
    assert min(lengths) == SHORTEST
    assert 3000 < max(lengths) <= 3500
    # A character is less than a token of a model: many questions alone are long here.
    for low, high in ((0, 100), (100, 500), (500, 1500), (1500, 3501)):
        assert sum(low <= n < high for n in lengths) >= 10


def test_all_are_different(prompts: list[list[int]]) -> None:
    assert len({tuple(prompt) for prompt in prompts}) == 100


@pytest.mark.parametrize("n", [12, 30, 100])
def test_a_first_part_has_every_language_and_short_and_long_ones(
    prompts: list[list[int]], n: int
) -> None:
    part = prompts[:n]
    for number, kind in enumerate(("English", "Chinese", "code")):
        mine = part[number::3]
        assert abs(len(mine) - n / 3) < 1
        assert sum(kind_of(prompt) == kind for prompt in mine) >= 0.8 * len(mine)
        assert min(map(len, mine)) < 150
    # Paragraphs are long in characters, so that not every third has a long one at once.
    assert max(map(len, part)) > 600


def test_the_same_prompts_come_every_time(prompts: list[list[int]]) -> None:
    assert spread_prompts(Characters(), 10, 3500, as_chat=True) == prompts[:10]


@pytest.mark.parametrize("longest", [1, 5, 20, 64])
def test_a_small_context_gets_short_prompts(longest: int) -> None:
    for as_chat in (True, False):
        found = spread_prompts(Characters(), 8, longest, as_chat=as_chat)
        assert all(1 <= len(prompt) <= longest for prompt in found)


def test_a_model_without_a_template_is_asked_plainly() -> None:
    found = spread_prompts(Characters(), 12, 3500, as_chat=False)
    assert all(prompt[0] != 0 for prompt in found)
