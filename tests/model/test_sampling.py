"""Sampled text keeps the target's own distribution, whatever is drafted."""

from __future__ import annotations

from collections import Counter

import pytest
from inputs import STEP, generate
from reference import PlainLlama

from racer_local.config import DraftConfig, GenerationConfig, SamplingConfig
from racer_local.decoding.session import Session

COLOURS = "red blue red blue red green red blue red"
# Upper 0.001 quantiles of the chi-square distribution by degrees of freedom.
CHI2_999 = {
    1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52, 6: 22.46, 7: 24.32, 8: 26.12, 9: 27.88,
    10: 29.59, 11: 31.26, 12: 32.91, 13: 34.53, 14: 36.12, 15: 37.70, 16: 39.25, 17: 40.79,
    18: 42.31, 19: 43.82, 20: 45.31, 21: 46.80, 22: 48.27, 23: 49.73, 24: 51.18, 25: 52.62,
    26: 54.05, 27: 55.48, 28: 56.89, 29: 58.30, 30: 59.70,
}  # fmt: skip


def pairs(model: Session, draft: DraftConfig, top_p: float, n_seeds: int) -> Counter[int]:
    """Count the second token among the texts that begin with the likeliest first one."""
    prompt = model.prompt_tokens(COLOURS)
    limits = GenerationConfig(max_tokens=3)
    model.engine.use(draft)
    model.engine.forget()
    by_first: dict[int, Counter[int]] = {}
    for seed in range(n_seeds):
        sampling = SamplingConfig(temperature=1.0, top_k=40, top_p=top_p, min_p=0, seed=seed)
        generation = model.engine.generate(prompt, sampling, limits)
        tokens = [event.token for event in generation]
        by_first.setdefault(tokens[0], Counter())[tokens[1] if len(tokens) > 1 else -1] += 1
    return max(by_first.values(), key=lambda counter: counter.total())


def chi_square(a: Counter[int], b: Counter[int]) -> tuple[float, int]:
    """Compare two samples; cells with an expectation below 5 are pooled."""
    total = a.total() + b.total()
    cells: list[tuple[int, int]] = []
    rest = (0, 0)
    for token in a.keys() | b.keys():
        both = a[token] + b[token]
        if both * min(a.total(), b.total()) / total < 5:
            rest = (rest[0] + a[token], rest[1] + b[token])
        else:
            cells.append((a[token], b[token]))
    if sum(rest):
        cells.append(rest)
    statistic = 0.0
    for x, y in cells:
        for found, size in ((x, a.total()), (y, b.total())):
            expected = (x + y) * size / total
            statistic += (found - expected) ** 2 / expected
    return statistic, len(cells) - 1


# Draws at fixed places are compared for every mode in test_verify.
@pytest.mark.slow
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_drafting_does_not_change_the_distribution(smol: Session, top_p: float) -> None:
    n_seeds = 400
    plain = pairs(smol, DraftConfig(mode="off"), top_p, n_seeds)
    drafted = pairs(smol, DraftConfig(mode="racer", budget=4), top_p, n_seeds)
    statistic, freedom = chi_square(plain, drafted)
    assert statistic < CHI2_999[min(max(freedom, 1), 30)]
    top, n_top = plain.most_common(1)[0]
    assert abs(n_top / plain.total() - drafted[top] / drafted.total()) < 0.1


@pytest.mark.parametrize("budget", [4, 16])
def test_a_seed_gives_the_same_text_with_and_without_drafts(smol: Session, budget: int) -> None:
    sampling = SamplingConfig(
        temperature=0.8, top_p=0.9, repeat_penalty=1.1, frequency_penalty=0.1, seed=11
    )
    prompt = smol.prompt_tokens(STEP)
    plain, _ = generate(smol, prompt, 40, DraftConfig(mode="off"), sampling)
    smol.engine.forget()
    drafted, _ = generate(smol, prompt, 40, DraftConfig(mode="pld", budget=budget), sampling)
    # A chain in a short cache is bit-identical, so even the random draws agree.
    assert drafted == plain


def test_a_fresh_seed_is_drawn_and_told_where_none_was_given(smol: Session) -> None:
    seeds = set()
    for _ in range(3):
        generation = smol.engine.generate(smol.prompt_tokens("a"), SamplingConfig())
        next(generation)
        generation.close()
        seeds.add(generation.stats.seed)
    assert len(seeds) == 3


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(temperature=1e-30, seed=1),
        SamplingConfig(temperature=100.0, seed=1),
        SamplingConfig(top_p=0.0, seed=1),
        SamplingConfig(min_p=1.0, seed=1),
        SamplingConfig(top_k=1, seed=1),
        SamplingConfig(top_k=0, top_p=1.0, min_p=0.0, seed=1),
        SamplingConfig(top_k=2**31 - 1, seed=1),
        SamplingConfig(repeat_penalty=100.0, penalty_last_n=-1, seed=1),
        SamplingConfig(logit_bias={7: 1e6}, seed=1),
        SamplingConfig(logit_bias={2**31 - 1: 1.0}, seed=1),
    ],
)
def test_extreme_settings_never_crash_the_native_sampler(
    smol: Session, sampling: SamplingConfig
) -> None:
    tokens, _ = generate(
        smol, smol.prompt_tokens(STEP), 12, DraftConfig(mode="racer", budget=8), sampling
    )
    assert all(0 <= token < smol.model.n_vocab for token in tokens)


def test_a_tiny_temperature_is_greedy(smol: Session, smol_plain: PlainLlama) -> None:
    prompt = smol.prompt_tokens(STEP)
    sampling = SamplingConfig(temperature=1e-30, seed=1)
    tokens, _ = generate(smol, prompt, 16, DraftConfig(mode="off"), sampling)
    assert tokens == smol_plain.greedy(prompt, 16)
