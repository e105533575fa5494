"""Tells PyInstaller where this package's hooks are; see ``docs/embedding.md``."""

from __future__ import annotations

from pathlib import Path

__all__ = ["get_hook_dirs"]


def get_hook_dirs() -> list[str]:
    """Return the folder with the hooks."""
    return [str(Path(__file__).parent)]
