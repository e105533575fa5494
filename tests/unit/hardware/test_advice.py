"""Advice follows from facts, and break-even points from costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from racer_local.hardware.advice import MachineFacts, advise, break_even, plot_curve, verdict
from racer_local.hardware.machine_state import governor

GOOD = {"n_physical": 4, "n_threads": 4, "free_bytes": 8 << 30, "needed_bytes": 1 << 30}


def test_a_sound_machine_gets_none() -> None:
    assert advise(MachineFacts(**GOOD)) == []
    calm = {"load": 0.1, "is_on_battery": False, "governor": "performance"}
    gpu = {"gpu_names": ["NVIDIA X"], "gpu_backends": frozenset({"cuda"})}
    assert advise(MachineFacts(**GOOD, **calm, **gpu)) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"gpu_names": ["NVIDIA X"]}, "make setup BACKEND=cuda"),
        ({"gpu_names": ["AMD GPU"]}, "make setup BACKEND=vulkan"),
        ({"n_threads": 2}, "2 threads on 4 cores"),
        ({"n_threads": 8}, "more threads than cores"),
        ({"is_on_battery": True}, "battery"),
        ({"governor": "powersave"}, "powersave"),
        ({"load": 3.0}, "load 3.0"),
        ({"needed_bytes": 16 << 30}, "the model needs 17.2 GB"),
        ({"misuses_amx": True}, "AMX"),
    ],
)
def test_each_known_problem_is_named(facts: dict[str, object], words: str) -> None:
    [line] = advise(MachineFacts(**{**GOOD, **facts}))
    assert words in line


def test_break_even_is_where_the_chain_gains_what_the_step_costs() -> None:
    share = break_even(2.0, 3)
    assert share is not None
    assert sum(share**i for i in range(4)) == pytest.approx(2.0)
    assert break_even(1.0, 5) == pytest.approx(0.0, abs=1e-9)
    assert break_even(4.0, 3) is None
    assert break_even(1.5, 1) == pytest.approx(0.5)


def test_the_plot_is_relative_to_one_token_and_fits_a_terminal() -> None:
    lines = plot_curve({1: 0.010, 2: 0.015, 64: 0.200})
    assert "1.50x" in lines[2]
    assert "20.00x" in lines[3]
    assert len(lines[3]) > len(lines[2]) > len(lines[1])
    assert max(map(len, lines)) < 80


def test_the_verdict_covers_what_was_measured() -> None:
    lines = verdict({1: 1.0, 2: 1.5, 4: 4.5})
    assert [line.split(":")[0].strip() for line in lines] == ["1 drafted", "3 drafted"]
    assert "above 50 %" in lines[0]
    assert "never" in lines[1]


def test_the_power_policy_is_read_where_it_means_something(tmp_path: Path) -> None:
    assert governor(tmp_path) == ""
    folder = tmp_path / "devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_driver").write_text("acpi-cpufreq\n")
    (folder / "scaling_governor").write_text("powersave\n")
    assert governor(tmp_path) == "powersave"
    (folder / "scaling_driver").write_text("intel_pstate\n")
    (folder / "energy_performance_preference").write_text("balance_performance\n")
    assert governor(tmp_path) == "balance_performance"
    (folder / "energy_performance_preference").write_text("power\n")
    assert governor(tmp_path) == "powersave"
