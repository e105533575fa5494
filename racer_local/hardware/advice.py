"""What draft sizes pay at a given cost, and what may slow a machine down. Layer: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["MachineFacts", "advise", "break_even", "plot_curve", "verdict"]

_BAR = "█"
_BAR_WIDTH = 40
_SIZES = (1, 2, 3, 5, 7, 11, 15, 31, 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What is known of a machine before anything is advised.

    Attributes:
        gpu_names: graphics cards that the system shows.
        gpu_backends: back ends that llama.cpp was built with, other than the CPU's.
        n_physical: physical cores this process may use.
        n_threads: threads that would be used.
        load: processes waiting for a processor in the last minute, or None.
        is_on_battery: None where there is no battery.
        governor: the processor's power policy, or ''.
        needed_bytes: memory the model needs.
        free_bytes: memory to be had.
        misuses_amx: the installed library would crash with AMX and is kept off it.
    """

    gpu_names: Sequence[str] = ()
    gpu_backends: frozenset[str] = frozenset()
    n_physical: int = 1
    n_threads: int = 1
    load: float | None = None
    is_on_battery: bool | None = None
    governor: str = ""
    needed_bytes: int = 0
    free_bytes: int = 0
    misuses_amx: bool = False


def advise(facts: MachineFacts) -> list[str]:
    """Return what could be better, the most important first; nothing if all is well."""
    lines = []
    if facts.needed_bytes > facts.free_bytes:
        lines.append(
            f"the model needs {facts.needed_bytes / 1e9:.1f} GB and "
            f"{facts.free_bytes / 1e9:.1f} GB are free: take a smaller quantization, a smaller "
            "model or a smaller --ctx"
        )
    if facts.gpu_names and not facts.gpu_backends:
        nvidia = any("nvidia" in name.lower() for name in facts.gpu_names)
        backend = "cuda" if nvidia else "vulkan"
        lines.append(
            f"there is a GPU ({facts.gpu_names[0]}), but llama.cpp was built without GPU support: "
            f"make setup BACKEND={backend}"
        )
    if facts.n_threads < facts.n_physical:
        lines.append(
            f"{facts.n_threads} threads on {facts.n_physical} cores: leave --threads away to use "
            "them all"
        )
    if facts.n_threads > facts.n_physical:
        lines.append(
            f"{facts.n_threads} threads on {facts.n_physical} physical cores: more threads than "
            "cores make every step wait; leave --threads away"
        )
    if facts.load is not None and facts.load > 0.5 * facts.n_physical:
        lines.append(
            f"other programs keep the processor busy (load {facts.load:.1f}): figures below are "
            "worse than they could be"
        )
    if facts.is_on_battery:
        lines.append("the machine runs on battery: plugged in it may be much faster")
    if facts.governor == "powersave":
        lines.append(
            "the processor's policy is 'powersave': a performance profile may be faster, for "
            "example with powerprofilesctl set performance"
        )
    if facts.misuses_amx:
        lines.append(
            "llama.cpp was compiled by a GCC whose AMX code crashes; it is kept on its ordinary "
            "kernels. A newer compiler and 'make setup' would use AMX"
        )
    return lines


def plot_curve(seconds: Mapping[int, float]) -> list[str]:
    """Draw the cost of steps as bars, relative to a step of one token.

    Args:
        seconds: time of a step, by its number of tokens; 1 is among them.
    """
    one = seconds[1]
    most = max(max(seconds.values()) / one, 1.0)
    lines = [f"{'tokens':>6}  {'ms':>7}  {'cost':>6}"]
    for n, t in sorted(seconds.items()):
        cost = t / one
        bar = _BAR * max(1, round(_BAR_WIDTH * cost / most))
        lines.append(f"{n:>6}  {1e3 * t:>7.1f}  {cost:>5.2f}x  {bar}")
    return lines


def break_even(cost: float, n_drafts: int) -> float | None:
    """Return the share of drafted tokens that must be right for a chain of them to pay.

    Each token of the chain is right with this probability, given that those before it were. None
    where even perfect guesses do not pay.

    Args:
        cost: of a step of ``n_drafts`` + 1 tokens, relative to one.
        n_drafts: length of the chain.
    """
    if cost >= n_drafts + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        gained = sum(middle**i for i in range(n_drafts + 1))
        low, high = (middle, high) if gained < cost else (low, middle)
    return high


def verdict(seconds: Mapping[int, float]) -> list[str]:
    """Say which draft sizes can pay at these costs."""
    one = seconds[1]
    lines = []
    for n in _SIZES:
        if n + 1 not in seconds:
            continue
        share = break_even(seconds[n + 1] / one, n)
        when = "never pays here" if share is None else f"pays above {share:.0%} accepted"
        lines.append(f"{n:>3} drafted: {when}".replace("%", " %"))
    return lines
