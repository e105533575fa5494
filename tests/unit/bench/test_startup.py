"""Start-up is measured by starting."""

from __future__ import annotations

from racer_local.bench.startup import measure_startup, startup_line


def test_each_command_is_started_twice_and_told_in_one_line() -> None:
    seconds = measure_startup()
    assert list(seconds) == ["racer-local generate --help", "import racer_local"]
    assert all(len(runs) == 2 and min(runs) > 0 for runs in seconds.values())
    line = startup_line({"racer-local generate --help": [0.211, 0.2], "import racer_local": [1, 2]})
    assert line == (
        "start-up: racer-local generate --help 0.21 and 0.20 s, import racer_local 1.00 and 2.00 s"
    )
