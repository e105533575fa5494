"""Verification: the chi-square test, plain decoding written a second time, and what is said."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from fakes import ScriptedTarget

from racer_local.config import DraftConfig, SamplingConfig
from racer_local.decoding.engine import Engine
from racer_local.verification.agreement import Agreement, Difference, answer, compare
from racer_local.verification.chi_square import Fit, chi_square_p, fit_of
from racer_local.verification.plain import PlainDecoder, distribution, penalized
from racer_local.verification.report import as_dict, faults, report, verdict
from racer_local.verification.rows import RowFacts, check_rows
from racer_local.verification.runner import Findings, Setting

# Upper quantiles from printed tables: freedom, probability, statistic.
TABLE = [
    (1, 0.05, 3.841), (1, 0.001, 10.828), (2, 0.05, 5.991), (2, 0.001, 13.816),
    (3, 0.01, 11.345), (5, 0.5, 4.351), (10, 0.05, 18.307), (10, 0.95, 3.940),
    (30, 0.001, 59.703), (100, 0.05, 124.342), (100, 0.99, 70.065),
]  # fmt: skip


@pytest.mark.parametrize(("freedom", "p", "statistic"), TABLE)
def test_chi_square_probabilities_are_those_of_the_tables(
    freedom: int, p: float, statistic: float
) -> None:
    assert chi_square_p(statistic, freedom) == pytest.approx(p, rel=2e-3)


@pytest.mark.parametrize("freedom", [1, 2, 7, 40, 1001])
def test_chi_square_probabilities_fall_from_one_to_zero(freedom: int) -> None:
    values = [chi_square_p(x, freedom) for x in np.linspace(0, 5 * freedom + 50, 60)]
    assert values[0] == 1.0
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(values))
    assert values[-1] < 1e-3


def test_an_impossible_chi_square_is_refused() -> None:
    for statistic, freedom in ((1.0, 0), (-1.0, 2), (math.nan, 2)):
        with pytest.raises(ValueError, match="chi-square"):
            chi_square_p(statistic, freedom)


def draw(probs: np.ndarray, n: int, seed: int) -> dict[int, int]:
    tokens = np.random.default_rng(seed).choice(len(probs), n, p=probs)
    return {int(t): int(c) for t, c in zip(*np.unique(tokens, return_counts=True), strict=True)}


def test_right_draws_fit_and_wrong_ones_do_not() -> None:
    probs = np.array([0.5, 0.3, 0.1, 0.05, 0.03, 0.01, 0.01])
    values = [fit_of(draw(probs, 2000, seed), probs).p for seed in range(200)]
    # p is uniform where the draws are right.
    assert 0.4 < np.mean(values) < 0.6
    assert np.mean(np.array(values) < 0.1) < 0.2
    tilted = np.array([0.46, 0.34, 0.1, 0.05, 0.03, 0.01, 0.01])
    assert all(fit_of(draw(tilted, 12_000, seed), probs).p < 0.001 for seed in range(20))


def test_a_token_that_cannot_be_drawn_spoils_any_fit() -> None:
    assert fit_of({0: 1000, 2: 1}, np.array([0.5, 0.5, 0.0])).p == 0.0


def test_a_single_possibility_is_no_test() -> None:
    fit = fit_of({1: 500}, np.array([0.0, 1.0]))
    assert (fit.freedom, fit.p) == (0, 1.0)


def test_the_distribution_follows_the_order_of_the_samplers() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], np.float32))
    plain = SamplingConfig(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert distribution(logits, plain) == pytest.approx([0.4, 0.3, 0.2, 0.06, 0.04])
    top_k = SamplingConfig(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0)
    assert distribution(logits, top_k) == pytest.approx([4 / 7, 3 / 7, 0, 0, 0])
    top_p = SamplingConfig(temperature=1.0, top_k=0, top_p=0.75, min_p=0.0)
    assert distribution(logits, top_p) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0, 0])
    min_p = SamplingConfig(temperature=1.0, top_k=0, top_p=1.0, min_p=0.14)
    assert distribution(logits, min_p) == pytest.approx(np.array([0.4, 0.3, 0.2, 0.06, 0]) / 0.96)
    cold = SamplingConfig(temperature=0.5, top_k=2, top_p=1.0, min_p=0.0)
    assert distribution(logits, cold) == pytest.approx([16 / 25, 9 / 25, 0, 0, 0])


def test_penalties_count_what_was_generated() -> None:
    logits = np.array([2.0, -2.0, 1.0], np.float32)
    config = SamplingConfig(repeat_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)
    assert penalized(logits, [0, 1, 1], config) == pytest.approx([0.25, -5.25, 1.0])
    assert penalized(logits, [0], config, counted=2) == pytest.approx([-0.25, -2.0, 1.0])
    last = SamplingConfig(frequency_penalty=1.0, penalty_last_n=1)
    assert penalized(logits, [0, 2], last) == pytest.approx([2.0, -2.0, 0.0])
    assert penalized(logits, [], SamplingConfig(logit_bias={2: 3.0, 99: 1.0}))[2] == 4.0


def test_plain_decoding_by_hand_is_the_engines() -> None:
    target = ScriptedTarget()
    greedy = SamplingConfig(temperature=0)
    expected = answer(Engine(target), DraftConfig(mode="off"), [3] * 40, 30, greedy)
    assert PlainDecoder(target, [3] * 40).answer(30, greedy) == expected


def test_comparing_finds_nothing_in_an_exact_target() -> None:
    engine = Engine(ScriptedTarget())
    modes = {"racer": DraftConfig(mode="racer", budget=8)}
    told = []
    found = compare(
        engine, [[1, 2], [3]], modes, 20, SamplingConfig(temperature=0), lambda: told.append(1)
    )
    assert (found["racer"].n_same, found["racer"].n_answers, found["racer"].n_tokens) == (2, 2, 40)
    assert len(told) == 4


def test_rows_of_an_exact_target_are_identical() -> None:
    target = ScriptedTarget(n_vocab=64)
    facts = check_rows(target, [5, 6, 7], list(range(24)), [2, 4, 16, 24])
    assert facts == RowFacts(3, 24, 24, True, True)


def exact_findings() -> Findings:
    rows = [RowFacts(32, 16, 16, True, True), RowFacts(560, 16, 16, True, True)]
    good = {"auto": Agreement(4, 100), "racer:16": Agreement(4, 100)}
    usual = {"auto": Agreement(4, 100, [Difference(1, 30, 0.02)]), "racer:16": Agreement(4, 100)}
    fits = {"auto": [Fit(100, 5.0, 5, 0.42)]}
    default = Setting([RowFacts(560, 1, 16, None, None)] * 2, usual, usual, None, fits, 64)
    exact = Setting(rows, good, good, None, fits, 15)
    return Findings(default, exact, None, [20, 30, 40, 50])


def test_where_all_is_well_the_verdict_says_what_holds() -> None:
    findings = exact_findings()
    assert faults(findings) == []
    assert "--exact holds: all 16 answers (400 tokens)" in verdict(findings)
    assert "7 of 8 greedy answers" in verdict(findings)
    text = report(findings)
    assert "auto, prompt 2: token 31 differs, logits 0.02 apart" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert json.loads(json.dumps(as_dict(findings)))["faults"] == []


def test_where_exactness_is_refused_the_verdict_says_why() -> None:
    findings = exact_findings()
    findings.exact, findings.refusal = None, "two rows differ"
    assert faults(findings) == []
    assert "cannot be had here: two rows differ" in verdict(findings)
    assert "--exact" not in report(findings).splitlines()[0]


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda f: f.exact.rows.append(RowFacts(9, 16, 16, False, True)), "mask is broken"),
        (lambda f: f.exact.rows.append(RowFacts(9, 16, 16, True, False)), "put back in order"),
        (lambda f: f.exact.rows.append(RowFacts(9, 4, 16, True, True)), "not identical"),
        (lambda f: setattr(f.exact, "failure", "code -1"), "batch was refused: code -1"),
        (lambda f: setattr(f.default, "sampler", "penalties count double"), "count double"),
        (
            lambda f: f.exact.greedy["auto"].differences.append(Difference(0, 1, 0.01)),
            "1 of 4 greedy answers of auto differ",
        ),
        (
            lambda f: f.exact.seeded["auto"].differences.append(Difference(0, 1, 0.01)),
            "1 of 4 seeded answers of auto differ",
        ),
        (
            lambda f: f.default.greedy["auto"].differences.append(Difference(0, 1, 3.0)),
            "no near-tie",
        ),
        (lambda f: f.default.draws["auto"].append(Fit(9, 99.0, 5, 1e-9)), "distribution"),
    ],
)
def test_every_kind_of_fault_is_told(spoil, word: str) -> None:
    findings = exact_findings()
    spoil(findings)
    assert any(word in fault for fault in faults(findings))
    assert verdict(findings).startswith("FAULT")
