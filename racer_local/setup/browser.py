"""Get a browser and a display for tests, where that is possible. Layer: set-up.

``python -m racer_local.setup.browser`` never fails: without a browser the tests of the chat page
are skipped and say so, and without Tk and a display those of the desktop example. A browser is
looked for in this order: one that is installed, Playwright's own, Debian's package (as root), a
download by Playwright.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from racer_local.setup.env import install_debian_package
from racer_local.setup.llama import SetupError, say

__all__ = ["find_browser", "main"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_DOWNLOAD_S = 600


def find_browser() -> str | None:
    """Return the path of a Chromium; ``RACER_BROWSER`` names one of your own."""
    override = os.environ.get("RACER_BROWSER")
    if override:
        return override
    for name in _NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    return _playwrights_own()


def _playwrights_own() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def _missing_for_windows() -> list[str]:
    """Name the Debian packages that a program with windows lacks here."""
    missing = [] if importlib.util.find_spec("_tkinter") else ["python3-tk"]
    has_display = sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY")
    if not has_display and shutil.which("Xvfb") is None:
        missing.append("xvfb")
    return missing


def _install_display() -> None:
    for package in _missing_for_windows():
        try:
            install_debian_package("what the test of the desktop example needs", package)
        except SetupError as error:
            say(f"{error}; the test of the desktop example is skipped")


def main() -> int:
    """Find a browser and a display or install them; say what came of it."""
    _install_display()
    if find_browser() is not None:
        return 0
    try:
        install_debian_package("a browser for the tests of the chat page", "chromium")
    except SetupError:
        say("fetching a browser for the tests of the chat page")
        command = [sys.executable, "-m", "playwright", "install", "chromium"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, check=False, capture_output=True, timeout=_DOWNLOAD_S)
    if find_browser() is None:
        say("there is no Chromium and none could be installed: tests of the chat page are skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
