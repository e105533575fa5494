"""How likely the target takes a candidate token, learned as it goes. Layer: pure.

A candidate is described by a handful of *cells*: one per question asked about it (how long is
the match, what share of the matches went on like this, where does it stand in which Copy-Logit
row), each question having as many cells as it has answers. The score of a candidate is the sum
of the weights of its cells; the candidates of one place compete in a softmax with one more
choice, "none of them", whose score is 0. So the estimates of one place never add up to more
than 1, and agreement of sources, rank and match length all count at once.

Each emitted token is one training example for all candidates of its place, drafted or not: one
step along the gradient of the log loss, which is "taken minus estimate" for every cell. Weights
start from ``prior_weights`` (see ``fit_priors``) and belong to a model and its text, not to the
user's words: they hold no tokens.

A last stage compares, per range of the estimate, how many candidates were expected and how many
were taken, and corrects by the ratio: it makes 0.7 mean 70 %. Candidates that were drafted count
twice: they were chosen for a high estimate, which favours estimates that are too high.

Layout of the cells (first cell of each block; ``candidates`` fills them):

| block | question |
| --- | --- |
| MATCH | length of the candidate's longest match, its share at that length, its count there |
| BLEND | its share of all matches, longer ones weighing more; most recent?; longest match here |
| TWO | rank and probability in the row of the last two tokens |
| ONE | the same in the latest row of the last token, apart for places with and without TWO |
| OLD | the same in the row of the last token before that |
| LAST | the same in the row of the place before: what was likely a token ago may be so now |
| MIX | share, match length and TWO together |
| HITS | recent share of right first guesses, per kind of candidate |
| WHERE | match in the answer or in given text, its length, its distance, most recent? |
| MEMORY | rank and probability in a remembered row of another text |
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import exp
from typing import TypeAlias

from racer_local.drafting.auto.book_weights import BOOK_CENTI_WEIGHTS
from racer_local.drafting.auto.prior_weights import PRIOR_CENTI_WEIGHTS

__all__ = ["N_CELLS", "Cells", "Estimator"]

Cells: TypeAlias = tuple[int, ...]

_PER_MILLE = range(1001)
LENGTH_BIN = [bisect_right((3, 4, 5, 6, 8, 11, 16, 24), n) for n in range(320)]
N_LENGTHS = 9
SHARE_BIN = [bisect_right((50, 150, 300, 450, 600, 750, 900, 970), milli) for milli in _PER_MILLE]
N_SHARES = 9
PROB_BIN = [
    bisect_right((20, 50, 100, 200, 350, 500, 650, 800, 900, 960, 990), milli)
    for milli in _PER_MILLE
]
N_PROBS = 12
DISTANCE_BIN = [bisect_right((16, 64, 250), n) for n in range(251)]
N_DISTANCES = 4
# Ranks 0, 1, 2 and beyond, per probability; before them "no row" and "not in the row".
N_ROW = 2 + 4 * N_PROBS
N_HITS = 8
# Kinds of candidates: matches by length (3) and share (2), rows only by presence in TWO (2).
N_KINDS = 8

MATCH = 0
BLEND = MATCH + N_LENGTHS * N_SHARES * 3
TWO = BLEND + N_SHARES * 2 * N_LENGTHS
ONE = TWO + N_ROW
OLD = ONE + 2 * N_ROW
LAST = OLD + N_ROW
MIX = LAST + N_ROW
HITS = MIX + 4 * 3 * 8
WHERE = HITS + N_HITS * N_KINDS
MEMORY = WHERE + 2 * 3 * N_DISTANCES * 2
N_CELLS = MEMORY + N_ROW + 1

# Step of one example: large enough to follow a text within some hundred tokens, small enough to
# leave what many texts agree on. In replay 0 to 0.02 differ by less than 0.01 in speedup.
_RATE = 0.01
# Gradients below this are left out: most candidates are unlikely, and known to be.
_NEGLIGIBLE = 2e-3

# Ranges of the correction, and the outcomes that each is credited with as correct at the start.
_N_RANGES = 20
_RANGE_PRIOR = 100.0
# Outcomes are forgotten over some 2,000 of their range.
_RANGE_MEMORY = 0.9995
# Candidates below this say little and are most of all.
_MIN_COUNTED = 0.02
_MAX_PROB = 0.999


class Estimator:
    """Weights of all cells; estimates, calibrates and learns."""

    __slots__ = ("_expected", "_rate", "_ratios", "_taken", "weights")

    def __init__(self, weights: Sequence[float] | None = None, rate: float = _RATE) -> None:
        """Start from the shipped priors.

        Args:
            weights: one per cell, to start from instead.
            rate: length of a learning step; 0 never learns.

        Raises:
            ValueError: if the number of weights is not ``N_CELLS``.
        """
        if weights is None:
            weights = [centi / 100.0 for centi in PRIOR_CENTI_WEIGHTS]
        if len(weights) != N_CELLS:
            raise ValueError(f"{len(weights)} weights for {N_CELLS} cells")
        # The cells of phrase books come last (``phrase_cells``).
        self.weights = [*weights, *(centi / 100.0 for centi in BOOK_CENTI_WEIGHTS)]
        self._rate = rate
        # Ranges of candidates without a word from books, then those of all others.
        self._expected = 2 * [_RANGE_PRIOR * (i + 0.5) / _N_RANGES for i in range(_N_RANGES)]
        self._taken = list(self._expected)
        self._ratios = [1.0] * len(self._expected)

    def estimate(self, cells: Sequence[Cells]) -> list[float]:
        """Estimate for each candidate of one place that it comes next, not yet calibrated."""
        weights = self.weights
        # Scores stay within some 15 in practice; the limit keeps exp() finite whatever happens.
        scores = [exp(min(50.0, sum([weights[cell] for cell in each]))) for each in cells]
        total = 1.0 + sum(scores)
        return [score / total for score in scores]

    def calibrate(self, cells: Sequence[Cells], probs: Sequence[float]) -> list[float]:
        """Correct estimates of one place by what became of such estimates.

        The correction is interpolated between the middles of the ranges. What books speak about
        has a correction of its own. The results add up to 1 at most.

        Args:
            cells: of each candidate.
            probs: as ``estimate`` gave them.
        """
        ratios, last = self._ratios, _N_RANGES - 1
        corrected = []
        for each, prob in zip(cells, probs, strict=True):
            first = _first_range(each)
            place = prob * _N_RANGES - 0.5
            if place <= 0.0:
                corrected.append(prob * ratios[first])
                continue
            low = int(place)
            ratio = ratios[first + low]
            if low < last:
                ratio += (place - low) * (ratios[first + low + 1] - ratio)
            corrected.append(min(prob * ratio, _MAX_PROB))
        total = sum(corrected)
        return [prob / total for prob in corrected] if total > 1.0 else corrected

    def count(self, cells: Cells, prob: float, is_taken: bool) -> None:
        """Count one outcome of an estimate for the calibration."""
        place = _first_range(cells) + min(_N_RANGES - 1, int(prob * _N_RANGES))
        self._expected[place] = _RANGE_MEMORY * self._expected[place] + prob
        self._taken[place] = _RANGE_MEMORY * self._taken[place] + is_taken
        self._ratios[place] = self._taken[place] / self._expected[place]

    def learn(self, cells: Sequence[Cells], probs: Sequence[float], taken: int) -> None:
        """Learn from what came: ``taken`` is the place in ``cells``, -1 for none of them.

        Args:
            cells: of each candidate.
            probs: as ``estimate`` gave them.
            taken: index of the candidate that came next.
        """
        weights, rate = self.weights, self._rate
        for index, prob in enumerate(probs):
            if prob >= _MIN_COUNTED:
                self.count(cells[index], prob, index == taken)
            gradient = (1.0 if index == taken else 0.0) - prob
            if gradient > _NEGLIGIBLE or gradient < -_NEGLIGIBLE:
                step = rate * gradient
                for cell in cells[index]:
                    weights[cell] += step


def _first_range(cells: Cells) -> int:
    """Return the first range of a candidate; the cells of books come last in it."""
    return _N_RANGES if cells[-1] >= N_CELLS else 0
