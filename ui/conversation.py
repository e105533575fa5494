"""Conversations: out of Gradio's hands and into files, and back. Layer: pure.

Gradio shows a conversation as messages whose content may be a list of parts; the model wants
``role`` and ``content`` as text. A file is JSON, or Markdown in which comments that no reader sees
say who speaks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from racer_local.errors import ConfigError

__all__ = ["Conversation", "flatten", "read_conversation", "to_json", "to_markdown"]

_FORMAT = "racer_local conversation"
_VERSION = 1
_MAX_CHARS = 4 * 2**20
_MAX_MESSAGES = 2000
_ROLES = ("user", "assistant")
_NAMES = {"system": "System", "user": "You", "assistant": "Model"}
_MARK = re.compile(r"^<!-- racer_local: (system|user|assistant) -->$", re.MULTILINE)
# A line of somebody's text that looks like a mark gets one more backslash.
_MARK_LIKE = re.compile(r"^(<!-- )(\\*)(racer_local: )", re.MULTILINE)
_ESCAPED = re.compile(r"^(<!-- )\\(\\*)(racer_local: )", re.MULTILINE)

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said.

    Attributes:
        messages: each with ``role`` (user or assistant) and ``content``.
        system: the system prompt, or ''.
        model: name of the model's file, or ''.
    """

    messages: Messages = field(default_factory=list)
    system: str = ""
    model: str = ""


def flatten(history: Sequence[Mapping[str, Any]] | None) -> Messages:
    """Turn what Gradio's chatbot holds into plain messages; anything but text is left out."""
    messages: Messages = []
    for message in history or ():
        content = message.get("content", "")
        if isinstance(content, list):
            texts = [part.get("text", "") for part in content if isinstance(part, Mapping)]
            content = "".join(text for text in texts if isinstance(text, str))
        if message.get("role") in _ROLES and isinstance(content, str):
            messages.append({"role": message["role"], "content": content})
    return messages


def to_json(conversation: Conversation) -> str:
    """Write a conversation as JSON."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": conversation.model,
        "system": conversation.system,
        "messages": conversation.messages,
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def to_markdown(conversation: Conversation) -> str:
    """Write a conversation as Markdown that reads well and can be read back."""
    said = [("system", conversation.system)] if conversation.system else []
    said += [(message["role"], message["content"]) for message in conversation.messages]
    blocks = []
    for role, text in said:
        guarded = _MARK_LIKE.sub(r"\1\\\2\3", text)
        blocks.append(f"<!-- racer_local: {role} -->\n### {_NAMES[role]}\n\n{guarded}\n")
    return "\n".join(blocks)


def read_conversation(text: str) -> Conversation:
    """Read what ``to_json`` or ``to_markdown`` wrote, or a bare JSON list of messages.

    Raises:
        ConfigError: it is something else, or too large; says what.
    """
    if len(text) > _MAX_CHARS:
        raise ConfigError(f"this file is too large for a conversation ({len(text):,} characters)")
    text = text.removeprefix("\ufeff")
    if _MARK.search(text.replace("\r\n", "\n")):
        return _read_markdown(text.replace("\r\n", "\n"))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(
            "this is neither a conversation in JSON nor one in Markdown that was exported here"
        ) from None
    if isinstance(content, list):
        content = {"messages": content}
    if not isinstance(content, dict):
        raise ConfigError("this JSON file is not a conversation: it has no messages")
    if content.get("format", _FORMAT) != _FORMAT or content.get("version", 1) != _VERSION:
        raise ConfigError("this conversation was written by another version or program")
    return _checked(content.get("messages"), content.get("system"), content.get("model"))


def _read_markdown(text: str) -> Conversation:
    # What comes before the first mark is nobody's.
    _, *parts = _MARK.split(text)
    said = []
    for role, block in zip(parts[::2], parts[1::2], strict=True):
        body = block.removeprefix(f"\n### {_NAMES[role]}\n\n").removesuffix("\n")
        said.append((role, _ESCAPED.sub(r"\1\2\3", body)))
    # Blocks are a line apart; the last one has nothing behind it.
    said = [(role, body.removesuffix("\n")) for role, body in said[:-1]] + said[-1:]
    system = [body for role, body in said if role == "system"]
    messages = [{"role": role, "content": body} for role, body in said if role != "system"]
    return _checked(messages, "\n\n".join(system), "")


def _checked(messages: object, system: object, model: object) -> Conversation:
    if not isinstance(messages, list) or not messages:
        raise ConfigError("this file is not a conversation: it has no messages")
    if len(messages) > _MAX_MESSAGES:
        raise ConfigError(f"this conversation has {len(messages)} messages; {_MAX_MESSAGES} fit")
    clean: Messages = []
    for number, message in enumerate(messages, start=1):
        role = message.get("role") if isinstance(message, dict) else None
        text = message.get("content") if isinstance(message, dict) else None
        if role == "system" and number == 1 and isinstance(text, str):
            system = system or text
            continue
        if role not in _ROLES or not isinstance(text, str):
            raise ConfigError(
                f"message {number} is not one: it needs a role, user or assistant, and a text"
            )
        clean.append({"role": str(role), "content": _encodable(text)})
    return Conversation(
        clean,
        _encodable(system) if isinstance(system, str) else "",
        _encodable(model) if isinstance(model, str) else "",
    )


def _encodable(text: str) -> str:
    # JSON can smuggle in half a surrogate pair, which no UTF-8 carries.
    return text.encode("utf-8", "replace").decode("utf-8")
