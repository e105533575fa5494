"""Where other programs keep their models, on each system. Layer: files (standard library only)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from racer_local.models.stores.base import read_small

__all__ = ["Places", "find_places"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Folders to look into; they need not exist.

    Attributes:
        ollama: folders with ``manifests`` and ``blobs``.
        lmstudio: folders with publisher, repository, file.
        hub: Hugging Face caches.
        llamacpp: folders of flat files.
        jan: data folders.
    """

    ollama: list[Path] = field(default_factory=list)
    lmstudio: list[Path] = field(default_factory=list)
    hub: list[Path] = field(default_factory=list)
    llamacpp: list[Path] = field(default_factory=list)
    jan: list[Path] = field(default_factory=list)


def find_places(
    environment: Mapping[str, str] | None = None,
    home: Path | None = None,
    system: str = sys.platform,
    root: Path = Path("/"),
) -> Places:
    """Work out the folders from the environment.

    Args:
        environment: its variables; None takes this process's.
        home: the user's home folder; None looks it up.
        system: as ``sys.platform`` names it.
        root: of the file system.
    """
    env = _Environment(os.environ if environment is None else environment, home)
    hub = _hub(env)
    llama = env.folder("LLAMA_CACHE")
    return Places(
        ollama=_ollama(env, system, root),
        lmstudio=_lmstudio(env),
        # Newer llama.cpp keeps its downloads in the layout of the hub, wherever it is told to.
        hub=_unique([hub, *([llama] if llama else [])]),
        llamacpp=[llama or _user_cache(env, system) / "llama.cpp"],
        jan=[_user_data(env, system) / "Jan" / "data"],
    )


class _Environment:
    def __init__(self, variables: Mapping[str, str], home: Path | None) -> None:
        self._variables = variables
        self.home = Path(os.path.expanduser("~")) if home is None else home

    def folder(self, name: str) -> Path | None:
        value = self._variables.get(name, "").strip()
        if not value or "\0" in value:
            return None
        if value == "~" or value.startswith(("~/", "~\\")):
            return self.home / value[2:]
        return Path(value)


def _unique(folders: list[Path]) -> list[Path]:
    return list(dict.fromkeys(folders))


def _ollama(env: _Environment, system: str, root: Path) -> list[Path]:
    named = env.folder("OLLAMA_MODELS")
    folders = [named] if named else [env.home / ".ollama" / "models"]
    if system.startswith("linux"):
        # Of the service that the installer sets up.
        folders.append(root / "usr" / "share" / "ollama" / ".ollama" / "models")
    return _unique(folders)


def _lmstudio(env: _Environment) -> list[Path]:
    homes = [env.home / ".lmstudio"]
    try:
        pointer = read_small(env.home / ".lmstudio-home-pointer").decode("utf-8").strip()
        if pointer and "\0" not in pointer and Path(pointer).is_absolute():
            homes.insert(0, Path(pointer))
    except (OSError, ValueError):
        pass
    folders = [home / "models" for home in homes]
    for home in homes:
        try:
            settings = json.loads(read_small(home / "settings.json"))
            chosen = settings.get("downloadsFolder")
            if isinstance(chosen, str) and Path(chosen).is_absolute() and "\0" not in chosen:
                folders.insert(0, Path(chosen))
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
    return _unique([*folders, env.home / ".cache" / "lm-studio" / "models"])


def _hub(env: _Environment) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        folder = env.folder(name)
        if folder:
            return folder
    hf_home = env.folder("HF_HOME")
    if hf_home:
        return hf_home / "hub"
    cache = env.folder("XDG_CACHE_HOME") or env.home / ".cache"
    return cache / "huggingface" / "hub"


def _user_cache(env: _Environment, system: str) -> Path:
    if system == "darwin":
        return env.home / "Library" / "Caches"
    if system == "win32":
        return env.folder("LOCALAPPDATA") or env.home / "AppData" / "Local"
    return env.folder("XDG_CACHE_HOME") or env.home / ".cache"


def _user_data(env: _Environment, system: str) -> Path:
    if system == "darwin":
        return env.home / "Library" / "Application Support"
    if system == "win32":
        return env.folder("APPDATA") or env.home / "AppData" / "Roaming"
    return env.folder("XDG_DATA_HOME") or env.home / ".local" / "share"
