"""The bundled prompts: load, group, and choose some of them evenly. Layer: files (no llama_cpp).

Sources and licences are in ``racer_local/data/README.md``.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from racer_local.errors import ConfigError

__all__ = ["CATEGORIES", "SUITES", "Prompt", "choose", "load_suite", "warm_prompts"]

_FILES = {
    "spec_bench": "spec_bench.jsonl.gz",
    "humaneval": "humaneval.jsonl.gz",
    "mgsm_zh": "mgsm_zh.jsonl.gz",
    "code_edit": "code_edit.jsonl",
}
SUITES = tuple(_FILES)
# As the field reports Spec-Bench: its six groups, in its own order.
_SPEC_BENCH = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
CATEGORIES = (*_SPEC_BENCH, "humaneval", "mgsm_zh", "code_edit")
# Of every four prompts of a category the last is kept for `warm`.
_WARM_EVERY = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to be measured.

    Attributes:
        suite: the file it comes from.
        category: the name it is reported under.
        question_id: its number in the suite.
        turns: the user's messages; the model's own answers go between them.
    """

    suite: str
    category: str
    question_id: int
    turns: tuple[str, ...]


@functools.cache
def load_suite(suite: str) -> tuple[Prompt, ...]:
    """Read all prompts of a bundled suite, in file order.

    Raises:
        ConfigError: there is no such suite.
    """
    if suite not in _FILES:
        raise ConfigError(f"no suite named {suite!r}; there are: {', '.join(SUITES)}")
    name = _FILES[suite]
    content = resources.files("racer_local").joinpath("data").joinpath(name).read_bytes()
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    prompts = []
    for line in content.decode("utf-8").splitlines():
        row = json.loads(line)
        category = suite
        if suite == "spec_bench":
            category = row["category"] if row["category"] in _SPEC_BENCH else "mt_bench"
        prompts.append(Prompt(suite, category, int(row["question_id"]), tuple(row["turns"])))
    return tuple(prompts)


def _by_category(names: Iterable[str]) -> dict[str, list[Prompt]]:
    """Group the prompts of suites, or of single categories, by category."""
    wanted: set[str] = set()
    for name in names:
        if name in ("all", *SUITES):
            suites = SUITES if name == "all" else (name,)
            wanted.update(prompt.category for suite in suites for prompt in load_suite(suite))
        elif name in CATEGORIES:
            wanted.add(name)
        else:
            known = ", ".join(("all", *SUITES, *_SPEC_BENCH))
            raise ConfigError(f"no suite or category named {name!r}; there are: {known}")
    if not wanted:
        raise ConfigError("no suite was named; leave --suites out to take all")
    everything = [prompt for suite in SUITES for prompt in load_suite(suite)]
    return {
        category: [prompt for prompt in everything if prompt.category == category]
        for category in CATEGORIES
        if category in wanted
    }


def choose(names: Sequence[str], per_category: int | None) -> list[Prompt]:
    """Choose prompts to measure: the same ones every time, evenly spaced in each category.

    Prompts that are kept for ``warm`` are never among them.

    Args:
        names: suites or categories; ``all`` is every suite.
        per_category: how many of each category; None or too many takes all.

    Raises:
        ConfigError: a name is unknown, or the number is not positive.
    """
    if per_category is not None and per_category < 1:
        raise ConfigError(f"prompts per category is {per_category}; it must be at least 1")
    chosen: list[Prompt] = []
    for prompts in _by_category(names).values():
        free = [p for i, p in enumerate(prompts) if i % _WARM_EVERY != _WARM_EVERY - 1]
        count = min(per_category or len(free), len(free))
        chosen.extend(free[(2 * i + 1) * len(free) // (2 * count)] for i in range(count))
    return chosen


def warm_prompts() -> list[Prompt]:
    """List the prompts that ``warm`` reads, one of each category in turn.

    Whenever it stops, every kind of text has had its share.
    """
    groups = [prompts[_WARM_EVERY - 1 :: _WARM_EVERY] for prompts in _by_category(["all"]).values()]
    longest = max(len(group) for group in groups)
    return [group[i] for i in range(longest) for group in groups if i < len(group)]
