"""Never slower than plain decoding: watches what drafting really brings. Layer: pure.

The planner drafts where it expects a gain. The guard looks at what came of it, in the unit of
time of the cost model (live: seconds): tokens emitted, at the price of a plain step each, against
the time their steps took. It answers in two ways.

1. *Margin.* While recent drafts cost more than they saved, drafts have to promise more than plain
   decoding by a margin, the larger the loss is; the margin goes when drafts pay again.
2. *Sleep.* If drafting together with its own overhead loses over many steps, it stops altogether:
   no drafts, no rows, no learning, at next to no cost, for 48 steps; then it is awake for 24 and
   judged again. Every failure doubles the sleep, up to 256 steps; a success resets it. A text
   that begins to repeat itself ends the sleep early. So a hopeless text costs a percent or so,
   and a change of text is noticed.
"""

from __future__ import annotations

__all__ = ["Guard"]

# Steps over which gains and losses are remembered: their weight falls by 1/e in so many.
_MEMORY_STEPS = 48
# Before that much evidence nothing is decided.
_MIN_EVIDENCE = 24
_FIRST_SLEEP, _LONGEST_SLEEP = 48, 256
_AWAKE = 24
# Steps of sleep that nothing ends.
_SOUND_SLEEP = 8
# A loss of one percent of the time asks for a margin of two percent, and so on, up to a limit.
_MARGIN_PER_LOSS = 2.0
_MAX_MARGIN = 0.5
# Losing less than this share of the time is not worth sleeping for: rows and estimates that are
# learned meanwhile may pay later.
_TOLERATED = 0.01


class Guard:
    """Realised gain of drafting, and what follows from it.

    Attributes:
        base_margin: share by which drafts must always beat plain decoding.
    """

    __slots__ = (
        "_awake_left",
        "_overhead",
        "_plain",
        "_saved",
        "_sleep",
        "_sleep_left",
        "_slept",
        "base_margin",
    )

    def __init__(self, base_margin: float = 0.0) -> None:
        """Start without any experience."""
        self.base_margin = base_margin
        self.reset()

    def reset(self) -> None:
        """Forget all."""
        self._plain = 0.0
        self._saved = 0.0
        self._overhead = 0.0
        self._sleep = _FIRST_SLEEP
        self._sleep_left = self._slept = 0
        self._awake_left = _MIN_EVIDENCE

    @property
    def is_asleep(self) -> bool:
        """Whether nothing should be drafted or learned now."""
        return self._sleep_left > 0

    @property
    def gain(self) -> float:
        """Time saved by drafting, as a share of that of plain decoding, overhead not counted."""
        return self._saved / self._plain if self._plain > 0 else 0.0

    @property
    def overhead_share(self) -> float:
        """What drafting and learning took, as a share of the time of plain decoding."""
        return self._overhead / self._plain if self._plain > 0 else 0.0

    @property
    def margin(self) -> float:
        """Share by which drafts must beat plain decoding now."""
        loss = max(0.0, -self.gain)
        return self.base_margin + min(_MAX_MARGIN, _MARGIN_PER_LOSS * loss)

    def observe(
        self, n_drafted: int, n_emitted: int, step_time: float, plain_time: float, overhead: float
    ) -> None:
        """Take note of one step.

        Args:
            n_drafted: draft nodes it decoded. Without any nothing was won or lost, however long
                it took: plain steps have slow ones among them too.
            n_emitted: tokens it emitted, at least 1.
            step_time: what it took the target.
            plain_time: what a plain step takes now.
            overhead: what drafting and learning took beside it.
        """
        if self._sleep_left:
            self._sleep_left -= 1
            self._slept += 1
            if not self._sleep_left:
                self._wake()
            return
        kept = 1.0 - 1.0 / _MEMORY_STEPS
        self._plain = kept * self._plain + n_emitted * plain_time
        self._saved *= kept
        if n_drafted:
            self._saved += n_emitted * plain_time - step_time
        self._overhead = kept * self._overhead + overhead
        if self._awake_left:
            self._awake_left -= 1
            return
        net = self._saved - self._overhead
        if net < -_TOLERATED * self._plain:
            self._sleep_left = self._sleep
            self._sleep = min(2 * self._sleep, _LONGEST_SLEEP)
        elif net > 0:
            self._sleep = _FIRST_SLEEP

    def rouse(self) -> None:
        """End the sleep, unless it has hardly begun: something worth copying was seen."""
        if self._sleep_left and self._slept >= _SOUND_SLEEP:
            self._sleep_left = 0
            self._wake()

    def _wake(self) -> None:
        self._slept = 0
        # Old losses must not put it back to sleep before it has shown what it can do now.
        self._plain = self._saved = self._overhead = 0.0
        self._awake_left = _AWAKE
