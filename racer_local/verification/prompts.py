"""Prompts of many lengths, in three languages, from the bundled suites. Layer: files.

Answers are compared after short prompts and long ones, in English, Chinese and code. Long prompts
are questions behind other texts of their own kind. Any first part of the list is as balanced as
the whole, so that a run that ends early says as much about every kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from racer_local.bench.contest import BenchModel
from racer_local.bench.runner import write_prompt
from racer_local.bench.suites import Prompt, choose
from racer_local.speculation.tree import TokenId

__all__ = ["SHORTEST", "spread_prompts"]

SHORTEST = 20
_ENGLISH = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
# Kinds of text, with the categories that questions come from, and the ones texts before them do.
_KINDS = (
    (_ENGLISH, ("summarization", "rag")),
    (("mgsm_zh",), ("mgsm_zh",)),
    (("humaneval", "code_edit"), ("humaneval", "code_edit")),
)


def spread_prompts(
    model: BenchModel, n_prompts: int, longest: int, *, as_chat: bool
) -> list[list[TokenId]]:
    """Make prompts whose lengths lie evenly, on a logarithmic scale, up to ``longest``.

    Args:
        model: whose tokenizer and chat template are used.
        n_prompts: how many; kinds of text take turns.
        longest: most tokens of a prompt.
        as_chat: through the chat template, but for those that are shorter than it.
    """
    questions = [[_cycle(category) for category in categories] for categories, _ in _KINDS]
    found = []
    for number in range(n_prompts):
        kind, turn = number % len(_KINDS), number // len(_KINDS)
        question = next(questions[kind][turn % len(questions[kind])]).turns[0]
        length = round(SHORTEST * (max(longest, SHORTEST) / SHORTEST) ** _spread(number))
        before = _KINDS[kind][1]
        found.append(_prompt(model, question, before, turn, length, as_chat=as_chat)[:longest])
    return found


def _cycle(category: str) -> Iterator[Prompt]:
    prompts = choose([category], None)
    while True:
        yield from prompts


def _spread(number: int) -> float:
    """Return the number's place in [0, 1]: its binary digits after the point, reversed."""
    place, step = 0.0, 0.5
    while number:
        place += step * (number & 1)
        number >>= 1
        step /= 2
    # 63 is the first one close to the end: let it reach it.
    return min(1.0, place * 64 / 63)


def _prompt(
    model: BenchModel,
    question: str,
    before: tuple[str, ...],
    turn: int,
    length: int,
    *,
    as_chat: bool,
) -> list[TokenId]:
    """Write a question, with as many texts before it as ``length`` tokens leave room for."""

    def written(*texts: str) -> list[TokenId]:
        return write_prompt(model, ["\n\n".join(texts)], [], as_chat=as_chat)

    prompt = written(question)
    if len(prompt) > length:
        # Too short for a template: bare text.
        raw = model.prompt_tokens(question)[:length]
        return prompt if len(raw) < length else raw
    others = [text for text in choose(before, None) if text.turns[0] != question]
    lines = [
        line
        for i in range(len(others))
        for line in others[(i + 7 * turn) % len(others)].turns[0].splitlines(keepends=True)
    ]
    # The most lines that fit, by halving: one tokenization each.
    low, high = 0, len(lines)
    while low < high:
        middle = (low + high + 1) // 2
        longer = written("".join(lines[:middle]), question)
        if len(longer) <= length:
            low, prompt = middle, longer
        else:
            high = middle - 1
    return prompt
