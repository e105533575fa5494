"""Draw speedups by category and mode. Needs matplotlib, the extra ``[bench]``. Layer: files."""

from __future__ import annotations

import importlib.util
import os

from racer_local.bench.contest import BASE
from racer_local.bench.report import Modes
from racer_local.errors import ConfigError, RacerError

__all__ = ["plot", "require_matplotlib"]

# Colours that the colour-blind can tell apart (Okabe and Ito), and patterns for print.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
_PATTERNS = ("", "//", "..", "xx", "\\\\")


def require_matplotlib() -> None:
    """Check that plots can be drawn, before a long benchmark and not after it.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed; "
            "install it with: pip install 'racer-local[bench]'"
        )


def plot(modes: Modes, path: str | os.PathLike[str], title: str = "") -> None:
    """Write a bar chart: one group per category, one bar per mode; 1.0 is plain decoding.

    Args:
        modes: the figures; there must be plain decoding among them.
        path: the image; its ending chooses the format.
        title: for example the model's name.

    Raises:
        ConfigError: matplotlib is not installed, or does not know the format.
        RacerError: the file cannot be written.
    """
    require_matplotlib()
    # The object interface: no window system is touched and no global state is changed.
    from matplotlib.figure import Figure

    names = [name for name in modes if name != BASE]
    categories = list(modes.get(BASE, {}))
    figure = Figure(figsize=(max(8.0, 0.35 * len(categories) * max(len(names), 1)), 4.8))
    axes = figure.add_subplot()
    bar = 0.8 / max(len(names), 1)
    for i, name in enumerate(names):
        rows = [modes[name].get(category) for category in categories]
        axes.bar(
            [place - 0.4 + (i + 0.5) * bar for place in range(len(categories))],
            [(row["speedup"] if row else None) or 0.0 for row in rows],
            bar,
            label=name,
            color=_COLOURS[i % len(_COLOURS)],
            hatch=_PATTERNS[i // len(_COLOURS) % len(_PATTERNS)],
        )
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_ylabel("speed relative to plain decoding")
    axes.set_xticks(range(len(categories)), categories, rotation=20, ha="right")
    axes.set_title(title)
    if names:
        axes.legend(ncols=min(4, len(names)), fontsize="small")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise ConfigError(f"cannot draw {os.fspath(path)}: {error}") from error
    except OSError as error:
        raise RacerError(f"cannot write {os.fspath(path)}: {error.strerror}") from error
