"""What a machine is doing and has: battery, power policy, graphics cards. Layer: files."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["governor", "graphics_cards", "is_on_battery"]

_SYS = Path("/sys")
_TIMEOUT_S = 10


def is_on_battery() -> bool | None:
    """Tell whether the machine runs on battery; None where it has none or does not say."""
    import psutil  # type: ignore[import-untyped]  # no stubs needed for one call

    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError):
        return None
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def governor(root: Path = _SYS) -> str:
    """Return the power policy of the first processor on Linux, or ''.

    Drivers that choose the frequency themselves call everything powersave and mean nothing by it.
    """
    folder = root / "devices" / "system" / "cpu" / "cpu0" / "cpufreq"
    try:
        if "pstate" in (folder / "scaling_driver").read_text(encoding="ascii"):
            preference = (folder / "energy_performance_preference").read_text(encoding="ascii")
            return "powersave" if preference.strip() == "power" else preference.strip()
        return (folder / "scaling_governor").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def graphics_cards(root: Path = _SYS) -> list[str]:
    """Name the graphics cards worth computing on, as far as the system shows them."""
    if shutil.which("nvidia-smi"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                capture_output=True,
                text=True,
                check=True,
                timeout=_TIMEOUT_S,
            )
            names = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            if names:
                return [name if "nvidia" in name.lower() else f"NVIDIA {name}" for name in names]
    if sys.platform == "darwin":
        return []  # Metal is built in.
    return _linux_cards(root)


def _linux_cards(root: Path) -> list[str]:
    vendors = {"0x10de": "NVIDIA GPU", "0x1002": "AMD GPU", "0x8086": "Intel GPU"}
    found = []
    for path in sorted((root / "class" / "drm").glob("card[0-9]*/device/vendor")):
        with contextlib.suppress(OSError, ValueError):
            name = vendors.get(path.read_text(encoding="ascii").strip())
            if name:
                found.append(name)
    return found
