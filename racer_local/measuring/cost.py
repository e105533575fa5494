"""What a decode step costs: a given curve, or a model of it that learns. Layer: pure.

``CostCurve`` is a fixed, relative curve for replay. ``CostModel`` knows seconds on this machine:

    t(n, context) = level * (base(n) + context_cost * n * (context - context of the probe))

``base`` starts from a few probe points, joined by straight lines, and is corrected for each n by
what steps really took, so steps of the curve (kernels work in groups of rows) show up where
they are. ``level`` is common to all n: it follows the median of the latest steps, so a throttled
machine or another program moves it within a few steps, one slow step does not move it, and
decisions, which depend on ratios only, stay as they were.

A deviation may be the level's or that of its n alone. It is the level's where n is *known*, from
the probe or since steps of its own were predicted well, and that of n (and fading, of its unknown
neighbours) where it is not: otherwise a curve that is wrong about large steps would seem a slow
machine as long as all steps are large. For the same reason plain steps have the last word: where
two of them disagree with the level, the level is theirs, and the steps between the two are
corrected; and when none has come for long, one is asked for (``wants_plain``). Attention is paid
for each row and each token of context; its rate is measured by a probe, if at all.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from racer_local.errors import ConfigError

__all__ = ["DEFAULT_CURVE", "CostCurve", "CostModel", "read_cost_curve"]

# Latest steps whose median is the common level: half of them must be slow before it moves.
_LEVEL_STEPS = 7
# An n is known after so many steps of its own, of which the last was at most 10 % off.
_KNOWN = 4
_WELL_PREDICTED = 0.1
# Share of a step's deviation (its logarithm) that a known n is corrected by: falling with the
# steps seen, and never less than this.
_MIN_GAIN = 0.02
_FIRST_GAIN = 0.25
# One step moves the correction at most as if it had taken so many times its time: e^0.3 = 1.35
# where n is known, twice at its first step, seven times at the next ones, half of which is taken.
_CLIP, _CLIP_FIRST, _CLIP_UNKNOWN = 0.3, 0.7, 2.0
# What a step tells about unknown neighbours, per step of distance, and how far.
_FADING = 0.8
_REACH = 8
# Two plain steps that are this far, in the logarithm, on one side of the level correct it.
_DISAGREEMENT = 0.1
# Steps without a plain one after which one is asked for.
_PLAIN_EVERY = 64
# A level below this share of the probe's: the probe was disturbed.
_MUCH_FASTER = 0.6
# A change of this size, relative, makes a new version.
_NEWS = 0.01


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Time of one decode step of n tokens, relative to one of a single token.

    Attributes:
        n: token counts, rising from 1.
        t: relative time for each.
    """

    n: Sequence[float]
    t: Sequence[float]

    def __post_init__(self) -> None:
        """Check the points.

        Raises:
            ConfigError: if they are not a curve over rising token counts with positive times.
        """
        pairs = list(zip(self.n, self.t, strict=False))
        numbers = all(math.isfinite(x) and x > 0 for pair in pairs for x in pair)
        rising = all(a < b for a, b in zip(self.n, self.n[1:], strict=False))
        if len(self.n) != len(self.t) or len(pairs) < 2 or not numbers or not rising:
            raise ConfigError(
                "a cost curve needs at least two points (n, t), n rising, all of them positive; "
                f"got n={list(self.n)} and t={list(self.t)}"
            )

    def __call__(self, n_tokens: float) -> float:
        """Interpolate linearly; beyond the last point, go on with the last slope."""
        i = min(max(bisect_left(self.n, n_tokens), 1), len(self.n) - 1)
        n0, n1, t0, t1 = self.n[i - 1], self.n[i], self.t[i - 1], self.t[i]
        return t0 + (t1 - t0) * (n_tokens - n0) / (n1 - n0)


# The shape where nothing is measured: a processor somewhat better at batches than the worst.
DEFAULT_CURVE = CostCurve([1, 2, 4, 8, 16, 32, 64], [1.0, 1.5, 2.3, 3.8, 6.0, 11.0, 19.0])


def read_cost_curve(spec: str) -> CostCurve:
    """Read ``FILE.json:CURVE``: an object of curves, each ``{"n": [...], "t": [...]}``.

    Raises:
        ConfigError: if the specification, the file or the curve is not usable.
    """
    name, colon, curve = spec.rpartition(":")
    if not colon or not name or not curve:
        raise ConfigError(f"cost is {spec!r}; it must be FILE.json:CURVE")
    try:
        with open(name, encoding="utf-8") as file:
            curves = json.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the cost curves {name}: {error}") from error
    if not isinstance(curves, dict) or curve not in curves:
        known = ", ".join(map(str, curves)) if isinstance(curves, dict) else "none"
        raise ConfigError(f"{name} has no cost curve {curve!r}; it has: {known}")
    try:
        points = curves[curve]
        return CostCurve([float(x) for x in points["n"]], [float(x) for x in points["t"]])
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(f"cost curve {curve!r} in {name} is not usable: {error}") from error


class CostModel:
    """Seconds of a decode step of n tokens, the root counted, after so much context.

    Attributes:
        version: changes whenever ``times`` has changed in shape by 1 % or more.
        n_observed: steps learned from.
    """

    __slots__ = (
        "_base",
        "_between",
        "_context_cost",
        "_is_fixed",
        "_is_guess",
        "_last_plain",
        "_level",
        "_n_context",
        "_recent",
        "_seen",
        "_since_plain",
        "_unreported",
        "n_observed",
        "version",
    )

    def __init__(
        self,
        points: Sequence[tuple[int, float]],
        *,
        n_max: int = 256,
        n_context: int = 0,
        context_cost: float = 0.0,
        is_fixed: bool = False,
        is_guess: bool = False,
    ) -> None:
        """Start from measured points.

        Args:
            points: (tokens, seconds), at least two, tokens rising from 1.
            n_max: largest step that will be asked for.
            n_context: tokens in the KV cache while the points were measured.
            context_cost: seconds for each row and each token of context.
            is_fixed: never learn.
            is_guess: the points were not measured here; at most their shape is true.

        Raises:
            ConfigError: if the points are no curve from n = 1, or a number is out of range.
        """
        if n_max < 1 or n_context < 0 or not (0.0 <= context_cost < math.inf):
            raise ConfigError(
                f"a cost model has n_max={n_max}, n_context={n_context}, "
                f"context_cost={context_cost}; they must be positive, and the last finite"
            )
        curve = CostCurve([float(n) for n, _ in points], [t for _, t in points])
        if points[0][0] != 1:
            raise ConfigError(f"the first point of a cost model is n={points[0][0]}; it must be 1")
        # More tokens are never cheaper than one; between other counts the curve may well fall.
        self._base = [curve.t[0], *(max(curve.t[0], curve(n)) for n in range(1, n_max + 1))]
        self._context_cost = context_cost
        self._n_context = n_context
        self._is_fixed = is_fixed
        self._level = 1.0
        # Deviations of the latest steps with a known n.
        self._recent: deque[float] = deque(maxlen=_LEVEL_STEPS)
        # Deviation of the last plain step, and of the known n since then.
        self._last_plain = 0.0
        self._between: dict[int, float] = {}
        self._since_plain = 0
        self._is_guess = is_guess
        self._seen = [0] * (n_max + 1)
        for n, _ in points if not is_guess else ():
            if n <= n_max:
                self._seen[int(n)] = _KNOWN
        self._unreported = [0.0] * (n_max + 1)
        self.n_observed = 0
        self.version = 0

    @classmethod
    def of_curve(cls, curve: Callable[[int], float], n_max: int = 256) -> CostModel:
        """Make a fixed model of a curve, in its own unit of time."""
        points = [(n, curve(n)) for n in range(1, max(n_max, 2) + 1)]
        return cls(points, n_max=n_max, is_fixed=True)

    @classmethod
    def of_probe(
        cls, points: Sequence[tuple[int, float]], n_max: int, context_cost: float = 0.0
    ) -> CostModel:
        """Make a model of what a probe in an empty context had time for.

        Beyond the largest measured step the default shape goes on from there, as a guess.

        Raises:
            ConfigError: if the points are no curve from n = 1.
        """
        points = [(n, t) for n, t in points if n <= max(n_max, 2)]
        last, seconds = points[-1]
        scale = max(seconds - points[0][1], 0.0) / (DEFAULT_CURVE(last) - 1.0) if last > 1 else 0.0
        guessed = [
            (n, seconds + scale * (DEFAULT_CURVE(n) - DEFAULT_CURVE(last)))
            for n in range(last + 1, n_max + 1)
        ]
        model = cls([*points, *guessed], n_max=n_max, context_cost=context_cost)
        for n, _ in guessed:
            model._seen[n] = 0
        return model

    @property
    def n_max(self) -> int:
        """Largest step it knows."""
        return len(self._base) - 1

    @property
    def level(self) -> float:
        """How much slower than at the probe the machine is now; 1 at the start."""
        return self._level

    @property
    def wants_plain(self) -> bool:
        """Whether the next step should be a plain one, to tell the level from the shape."""
        return self._since_plain >= _PLAIN_EVERY

    def seconds(self, n_tokens: int, n_context: int = 0) -> float:
        """Predict the time of a step; beyond ``n_max`` in proportion."""
        n = min(max(n_tokens, 1), self.n_max)
        return self._level * self._raw(n, n_context) * (max(n_tokens, 1) / n)

    def _raw(self, n: int, n_context: int) -> float:
        more = self._context_cost * n * (n_context - self._n_context)
        # A probe in long context must not predict next to nothing for an empty one.
        return max(self._base[n] + more, 0.1 * self._base[n])

    def times(self, n_max: int, n_context: int = 0) -> list[float]:
        """List the times of steps of 1, 2, ... ``n_max`` tokens; index 0 repeats the first."""
        n_max = min(max(n_max, 1), self.n_max)
        first = self._level * self._raw(1, n_context)
        later = [max(first, self._level * self._raw(n, n_context)) for n in range(2, n_max + 1)]
        return [first, first, *later]

    def observe(self, n_tokens: int, n_context: int, seconds: float) -> None:
        """Learn from a step; what cannot be a time, or a step larger than ``n_max``, is ignored."""
        is_usable = math.isfinite(seconds) and seconds > 0.0 and 1 <= n_tokens <= self.n_max
        if self._is_fixed or not is_usable:
            return
        self.n_observed += 1
        deviation = math.log(seconds / self._raw(n_tokens, n_context))
        self._since_plain = 0 if n_tokens == 1 else self._since_plain + 1
        is_known = self._seen[n_tokens] >= _KNOWN
        if is_known or (self._is_guess and self.n_observed <= _LEVEL_STEPS):
            self._recent.append(deviation)
            self._level = math.exp(median(self._recent))
            if self._level < _MUCH_FASTER and len(self._recent) == _LEVEL_STEPS:
                self._distrust_shape()
                return
            # The level has to be known before a deviation from it says something about n.
            if len(self._recent) < _LEVEL_STEPS:
                return
        if n_tokens == 1:
            self._resync_level(deviation)
            self._between.clear()
        elif is_known:
            self._between[n_tokens] = deviation
        self._learn_shape(n_tokens, deviation - math.log(self._level))

    def _distrust_shape(self) -> None:
        """Start over from the default shape: the probe met a machine that was busy.

        Threads that wait for each other are slowed down by other programs out of proportion,
        and differently for each n; nothing of that holds when they are gone.
        """
        first = self._base[1] * self._level
        n_max = self.n_max
        self._base = [first, *(first * DEFAULT_CURVE(n) for n in range(1, n_max + 1))]
        self._seen = [0, _KNOWN, *([0] * (n_max - 1))]
        self._context_cost *= self._level
        self._level = 1.0
        self._recent.clear()
        self._between.clear()
        self._last_plain = 0.0
        self.version += 1

    def _resync_level(self, deviation: float) -> None:
        level, before = math.log(self._level), self._last_plain
        self._last_plain = deviation
        nearest = min(deviation - level, before - level, key=abs)
        is_one_sided = (deviation - level) * (before - level) > 0
        if not is_one_sided or abs(nearest) <= _DISAGREEMENT:
            return
        level += nearest
        # Only steps between the two: those before may be of another time, when it was slower.
        for n, apart in self._between.items():
            self._correct(n, apart - level)
        self._level = math.exp(level)
        self._recent.clear()
        self._recent.extend([level] * _LEVEL_STEPS)

    def _learn_shape(self, n: int, apart: float) -> None:
        seen = self._seen[n]
        if seen != _KNOWN - 1 or abs(apart) <= _WELL_PREDICTED:
            self._seen[n] = min(seen + 1, 1_000_000)
        if seen >= _KNOWN:
            gain = max(_MIN_GAIN, _FIRST_GAIN / (1 + (seen - _KNOWN) / 4))
            self._correct(n, gain * min(max(apart, -_CLIP), _CLIP))
            return
        clip = _CLIP_UNKNOWN if seen else _CLIP_FIRST
        step = min(max(apart, -clip), clip) / (2 if seen else 1)
        for other in range(max(2, n - _REACH), min(self.n_max, n + _REACH) + 1):
            if other == n:
                self._correct(other, step)
            elif self._seen[other] < _KNOWN:
                self._correct(other, step * _FADING ** abs(other - n) / (1 + self._seen[other]))

    def _correct(self, n: int, step: float) -> None:
        self._base[n] *= math.exp(step)
        self._unreported[n] += step
        if abs(self._unreported[n]) >= _NEWS:
            self._unreported[n] = 0.0
            self.version += 1

    def to_dict(self) -> dict[str, Any]:
        """Give what is needed to go on later: plain numbers, a few kilobytes at most."""
        return {
            "version": 1,
            "seconds": [round(t * self._level, 9) for t in self._base[1:]],
            "n_context": self._n_context,
            "context_cost": self._context_cost * self._level,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> CostModel:
        """Take up what ``to_dict`` gave.

        Raises:
            ConfigError: if it is of another version or no usable model.
        """
        try:
            if saved["version"] != 1:
                raise ConfigError(f"a saved cost model has version {saved['version']!r}, not 1")
            seconds = [float(t) for t in saved["seconds"]]
            return cls(
                list(enumerate(seconds, start=1)),
                n_max=len(seconds),
                n_context=int(saved["n_context"]),
                context_cost=float(saved["context_cost"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"a saved cost model is not usable: {error}") from error
