"""A chi-square test of counted tokens against a given distribution. Layer: pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from racer_local.speculation.tree import TokenId

__all__ = ["Fit", "chi_square_p", "fit_of"]

# The approximation is good where every cell is expected to be hit this often.
_MIN_EXPECTED = 5.0


@dataclass(frozen=True, slots=True)
class Fit:
    """How well counts fit a distribution.

    Attributes:
        n_draws: how many were counted.
        statistic: chi-square.
        freedom: degrees of freedom; 0 where there was only one possibility.
        p: how often counts from this very distribution would fit as badly or worse.
    """

    n_draws: int
    statistic: float
    freedom: int
    p: float


def chi_square_p(statistic: float, freedom: int) -> float:
    """Return the probability that a chi-square variable exceeds ``statistic``.

    Raises:
        ValueError: there are no degrees of freedom, or the statistic is negative.

    Source: Q(a + 1, y) = Q(a, y) + y^a e^-y / Gamma(a + 1) from Q(1, y) = e^-y and
    Q(1/2, y) = erfc(sqrt(y)); https://dlmf.nist.gov/8.8.E6, 8.4.E5 and 8.4.E6.
    """
    if freedom < 1 or not statistic >= 0.0:
        raise ValueError(f"no chi-square with {freedom} degrees of freedom at {statistic}")
    y = statistic / 2
    if y == 0.0:
        return 1.0
    a, q = (0.5, math.erfc(math.sqrt(y))) if freedom % 2 else (1.0, math.exp(-y))
    while a < freedom / 2:
        q += math.exp(a * math.log(y) - y - math.lgamma(a + 1))
        a += 1
    return min(q, 1.0)


def fit_of(counts: Mapping[TokenId, int], probs: NDArray[np.float64]) -> Fit:
    """Test counted tokens against ``probs``: float64 [n_vocab].

    Tokens that are seldom expected share one cell. A token that cannot be drawn at all makes any
    fit impossible.
    """
    n = sum(counts.values())
    if any(probs[token] == 0.0 for token, count in counts.items() if count):
        return Fit(n, math.inf, 1, 0.0)
    often = np.flatnonzero(probs * n >= _MIN_EXPECTED)
    cells = [(counts.get(int(token), 0), float(probs[token]) * n) for token in often]
    rest = n - sum(found for found, _ in cells), n - sum(expected for _, expected in cells)
    # The last few are too rare for a cell of their own, and too few for one together.
    if rest[1] >= _MIN_EXPECTED:
        cells.append(rest)
    elif cells:
        found, expected = cells.pop()
        cells.append((found + rest[0], expected + rest[1]))
    if len(cells) < 2:
        return Fit(n, 0.0, 0, 1.0)
    statistic = sum((found - expected) ** 2 / expected for found, expected in cells)
    return Fit(n, statistic, len(cells) - 1, chi_square_p(statistic, len(cells) - 1))
