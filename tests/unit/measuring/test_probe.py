from __future__ import annotations

import pytest
from fakes import FakeRows, ScriptedTarget

from racer_local.measuring import probe
from racer_local.measuring.cost import CostModel
from racer_local.speculation.tree import DraftTree


class TimedTarget(ScriptedTarget):
    """Moves a clock by what steps are set to take: 1 ms a row, and attention."""

    attention_s = 4e-6

    def __init__(self, row_s: float = 0.001) -> None:
        super().__init__(n_ctx=2048, n_batch=64)
        self.row_s = row_s
        self.now = 0.0
        self.n_read = 0

    def decode_tree(self, tree: DraftTree) -> FakeRows:
        n = len(tree)
        self.now += self.row_s * (4 + n) + self.attention_s * n * len(self.tokens)
        return super().decode_tree(tree)

    def prefill(self, tokens, wanted):  # type: ignore[no-untyped-def]
        self.n_read += len(tokens)
        return super().prefill(tokens, wanted)


def probed(target: TimedTarget, monkeypatch: pytest.MonkeyPatch, n_max: int = 65) -> probe.Probe:
    monkeypatch.setattr(probe, "perf_counter", lambda: target.now)
    return probe.probe_steps(target, n_max)


def test_steps_and_attention_are_measured_and_the_text_is_empty_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = TimedTarget()
    found = probed(target, monkeypatch)
    assert found.context_cost == pytest.approx(target.attention_s)
    assert dict(found.points)[8] == pytest.approx(0.012)
    assert target.tokens == []
    model = CostModel.of_probe(found.points, 65, found.context_cost)
    assert model.seconds(4, 1000) == pytest.approx(0.008 + 4 * 1000 * target.attention_s)


def test_a_machine_that_pays_for_a_change_of_size_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Replaying(TimedTarget):
        """Two steps after a change of size take 3 ms more."""

        sizes: tuple[int, ...] = ()

        def decode_tree(self, tree: DraftTree) -> FakeRows:
            self.now += 0.003 * (set((*self.sizes[-2:], len(tree))) != {len(tree)})
            self.sizes = (*self.sizes, len(tree))
            return super().decode_tree(tree)

    points = dict(probed(Replaying(row_s=0.0002), monkeypatch).points)
    assert points[1] == pytest.approx(0.001)
    assert points[2] == pytest.approx(0.0012 + 3 * 0.003)


def test_a_slow_model_does_not_read_a_context_for_the_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = TimedTarget(row_s=0.2)
    found = probed(target, monkeypatch)
    assert found.context_cost == 0.0
    assert target.n_read == 0
    assert [n for n, _ in found.points] == [1, 2]
