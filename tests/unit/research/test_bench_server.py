"""What HTTP adds is worked out against the engine's own figures."""

from __future__ import annotations

import pytest

from racer_local.research.bench_server import Measured, summary


def test_times_are_medians_of_pairs_and_speeds_are_sums() -> None:
    engine = [Measured(11, 0.010, 0.1), Measured(101, 0.030, 0.9), Measured(2, 0.020, 0.01)]
    http = [Measured(11, 0.012, 0.2), Measured(101, 0.033, 0.8), Measured(2, 0.030, 0.111)]
    figures = summary({"engine": engine, "http": http})
    assert figures["engine"]["extra_ms"] == 0
    assert figures["engine"]["tokens_per_s"] == pytest.approx(111 / 1.01)
    assert figures["http"]["first_ms"] == pytest.approx(30)
    assert figures["http"]["extra_ms"] == pytest.approx(3)
    assert figures["http"]["most_extra_ms"] == pytest.approx(10)
    assert figures["http"]["relative"] == pytest.approx(1.01 / 1.111)
