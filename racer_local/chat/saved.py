"""Chats as files: a small JSON document, written whole or not at all. Layer: files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from racer_local.chat.conversation import Conversation, Turn
from racer_local.errors import ConfigError
from racer_local.storage.files import data_folder, write_text
from racer_local.wording import quoted

__all__ = ["SavedChat", "chat_path", "load_chat", "save_chat"]

_FORMAT = "racer-local chat"
_VERSION = 1
_MAX_BYTES = 64 << 20
_NAME_CHARS = 100


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A chat read from a file.

    Attributes:
        conversation: system message and turns.
        model: name of the model it was held with; for information only.
    """

    conversation: Conversation
    model: str


def chat_path(name: str) -> Path:
    """Turn what the user typed into a path: a path stays one, a bare name is kept with the others.

    Raises:
        ConfigError: it is empty or no possible file name.
    """
    name = name.strip()
    if len(name) > 1 and name[0] == name[-1] and name[0] in "'\"":
        name = name[1:-1]
    if not name or "\0" in name:
        raise ConfigError("give a name or a path for the chat")
    if "/" in name or "\\" in name or name.startswith("~"):
        return Path(os.path.expanduser(name))
    if len(name) > _NAME_CHARS or name.startswith("."):
        raise ConfigError(f"{quoted(name)} cannot be the name of a chat; give a shorter, plain one")
    folder = data_folder() / "chats"
    return folder / (name if name.endswith(".json") else f"{name}.json")


def save_chat(path: Path, conversation: Conversation, model: str) -> None:
    """Write a chat, readable by its owner alone.

    A file that is there is replaced only if it is a saved chat too.

    Raises:
        ConfigError: it cannot be written; what was there is unharmed.
    """
    if path.exists():
        try:
            load_chat(path)
        except ConfigError:
            raise ConfigError(
                f"{quoted(str(path))} is there already and is no saved chat; take another name"
            ) from None
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": model,
        "system": conversation.system,
        "turns": [{"user": turn.user, "assistant": turn.answer} for turn in conversation.turns],
    }
    try:
        write_text(path, json.dumps(document, ensure_ascii=False, indent=1))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"the chat cannot be written to {quoted(str(path))}: {reason}") from error


def load_chat(path: Path) -> SavedChat:
    """Read a chat.

    Raises:
        ConfigError: there is none, or the file is not a chat that was saved here.
    """
    shown = quoted(str(path))
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{shown} is too large to be a saved chat")
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no saved chat at {shown}{_others(path)}") from None
    except OSError as error:
        raise ConfigError(f"the chat {shown} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise ConfigError(f"{shown} is not a saved chat") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ConfigError(f"{shown} is not a saved chat")
    if document.get("version") != _VERSION:
        raise ConfigError(
            f"{shown} was saved in format {document.get('version')!r}, which this version "
            "does not read"
        )
    return SavedChat(_conversation(document, shown), str(document.get("model") or ""))


def _conversation(document: dict[str, Any], shown: str) -> Conversation:
    system, turns = document.get("system"), document.get("turns")
    is_sound = (
        (system is None or isinstance(system, str))
        and isinstance(turns, list)
        and all(
            isinstance(turn, dict)
            and isinstance(turn.get("user"), str)
            and isinstance(turn.get("assistant"), str)
            for turn in turns
        )
    )
    if not is_sound or not isinstance(turns, list):
        raise ConfigError(f"{shown} is a damaged chat: its turns are not as they were saved")
    return Conversation(system, [Turn(turn["user"], turn["assistant"]) for turn in turns])


def _others(path: Path) -> str:
    try:
        names = sorted(other.stem for other in path.parent.glob("*.json"))
    except OSError:
        return ""
    return f"; there are: {', '.join(names[:8])}" if names else ""
