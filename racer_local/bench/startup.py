"""How long the program takes to start: a help text, and the package's import. Layer: processes."""

from __future__ import annotations

import subprocess
import sys
from time import perf_counter

__all__ = ["measure_startup", "startup_line"]

_COMMANDS = {
    "racer-local generate --help": ["-m", "racer_local", "generate", "--help"],
    "import racer_local": ["-c", "import racer_local"],
}
_N_RUNS = 2


def measure_startup() -> dict[str, list[float]]:
    """Return the seconds of each run of each command, the interpreter's own start included."""
    return {
        name: [_seconds([sys.executable, *arguments]) for _ in range(_N_RUNS)]
        for name, arguments in _COMMANDS.items()
    }


def _seconds(command: list[str]) -> float:
    started = perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return perf_counter() - started


def startup_line(seconds: dict[str, list[float]]) -> str:
    """Write the times in one line."""
    parts = [
        f"{name} {' and '.join(f'{run:.2f}' for run in runs)} s" for name, runs in seconds.items()
    ]
    return "start-up: " + ", ".join(parts)
