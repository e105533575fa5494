"""The bundled prompts are all there, grouped as the field does, and chosen evenly."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from racer_local.bench.suites import CATEGORIES, SUITES, choose, load_suite, warm_prompts
from racer_local.errors import ConfigError


@pytest.mark.parametrize(
    ("suite", "n"), [("spec_bench", 480), ("humaneval", 164), ("mgsm_zh", 250), ("code_edit", 32)]
)
def test_every_suite_is_bundled_whole(suite: str, n: int) -> None:
    prompts = load_suite(suite)
    assert len(prompts) == n
    assert len({prompt.question_id for prompt in prompts}) == n
    assert all(turn.strip() for prompt in prompts for turn in prompt.turns)


def test_the_eight_mt_bench_categories_are_one_and_have_two_turns() -> None:
    counts = Counter(prompt.category for prompt in load_suite("spec_bench"))
    assert counts == dict.fromkeys(CATEGORIES[:6], 80)
    assert {len(p.turns) for p in load_suite("spec_bench") if p.category == "mt_bench"} == {2}


def test_a_code_edit_asks_for_the_whole_file_and_shows_it() -> None:
    for prompt in load_suite("code_edit"):
        (turn,) = prompt.turns
        assert "Print the whole file." in turn
        assert turn.count("```") == 2
        assert turn.endswith("\n```")


def test_the_choice_is_the_same_every_time_and_spread_over_the_category() -> None:
    chosen = choose(["qa"], 3)
    assert chosen == choose(["qa"], 3)
    places = [load_suite("spec_bench").index(prompt) for prompt in chosen]
    gaps = [b - a for a, b in pairwise(places)]
    assert places == sorted(places)
    assert max(gaps) - min(gaps) <= 2
    assert max(gaps) > 20


def test_all_categories_come_in_the_order_of_the_report() -> None:
    chosen = choose(["all"], 1)
    assert [prompt.category for prompt in chosen] == list(CATEGORIES)


def test_suites_and_categories_can_be_mixed_and_repeated() -> None:
    chosen = choose(["mgsm_zh", "qa", "qa", "spec_bench"], 2)
    assert Counter(p.category for p in chosen) == dict.fromkeys([*CATEGORIES[:6], "mgsm_zh"], 2)


def test_more_than_there_are_is_all_but_those_kept_for_warm() -> None:
    chosen = choose(["all"], 10_000)
    assert chosen == choose(["all"], None)
    kept = warm_prompts()
    assert not set(chosen) & set(kept)
    assert len(chosen) + len(kept) == sum(len(load_suite(suite)) for suite in SUITES)
    assert Counter(p.category for p in chosen)["code_edit"] == 24


def test_warm_reads_every_kind_in_turn() -> None:
    assert [prompt.category for prompt in warm_prompts()[: len(CATEGORIES)]] == list(CATEGORIES)


@pytest.mark.parametrize("names", [["gsm8k"], [], ["qa", "QA"]])
def test_unknown_names_are_refused_with_the_known_ones(names: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"qa|--suites"):
        choose(names, 1)


def test_an_unknown_suite_is_refused() -> None:
    with pytest.raises(ConfigError, match="spec_bench"):
        load_suite("gsm8k")


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one_prompt_is_needed(count: int) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        choose(["qa"], count)
