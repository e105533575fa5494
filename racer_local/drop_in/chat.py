"""Conversations: what upstream's chat handlers make of them, and what to do with long ones.

Upstream's class is bound here once: programs put ``RacerLlama`` in its place
(``llama_cpp.Llama = RacerLlama``), and a later look-up would find ourselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import llama_cpp
from llama_cpp import Llama as UpstreamLlama

from racer_local.backend.chat import TEMPLATE_ERRORS
from racer_local.errors import ContextFullError

__all__ = [
    "TEMPLATE_ERRORS",
    "Completing",
    "Message",
    "UpstreamLlama",
    "chat_request",
    "drop_oldest_turns",
    "needed_criteria",
    "with_schema",
]

Message: TypeAlias = Mapping[str, Any]


class Completing:
    """Stands in for a model before a chat handler; everything but completing is the model's."""

    def __init__(self, llama: object, complete: Callable[..., Any]) -> None:
        """Have ``complete`` called with what the handler wants to have completed."""
        self._llama = llama
        self.create_completion = complete

    def __getattr__(self, name: str) -> Any:
        """Return what the model has."""
        return getattr(self._llama, name)


def with_schema(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Write OpenAI's ``json_schema`` response format the way that upstream understands."""
    if response_format is None or response_format.get("type") != "json_schema":
        return response_format
    wrapped = response_format.get("json_schema") or {}
    schema = wrapped.get("schema", response_format.get("schema"))
    return {"type": "json_object", **({} if schema is None else {"schema": schema})}


def needed_criteria(llama: Any, criteria: Any) -> list[Callable[..., bool]]:
    """Return stopping criteria without the one that upstream adds to chats by itself.

    That one says to end at the model's end token, as the engine does anyway, and would cost a copy
    of the logits of every token. One of a chat handler of the user's stays.
    """
    if criteria is None:
        return []
    if type(criteria) is not llama_cpp.StoppingCriteriaList or llama.chat_handler is not None:
        return [criteria]
    own = "Jinja2ChatFormatter.__call__."
    return [c for c in criteria if not getattr(c, "__qualname__", "").startswith(own)]


def chat_request(
    llama: object, messages: Sequence[Message], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the completion request that the model's chat handler makes of a conversation.

    Args:
        llama: the model.
        messages: the conversation.
        options: those of ``create_chat_completion``.
    """
    asked: dict[str, Any] = {}

    def note(**request: Any) -> Iterator[Any]:
        asked.update(request)
        return iter(())

    # A stream is made into chat chunks only when it is read, which this one is not.
    UpstreamLlama.create_chat_completion(
        Completing(llama, note), messages=list(messages), **{**options, "stream": True}
    )
    if not asked:
        raise TypeError("this chat handler does not complete a prompt, so it cannot be used here")
    del asked["stream"]
    return asked


def drop_oldest_turns(
    messages: Sequence[Message], n_tokens: Callable[[Sequence[Message]], int], n_max: int
) -> tuple[list[Message], list[Message]]:
    """Shorten a conversation from its beginning until it fits.

    System messages stay, and so does everything from the last user message on. A turn is a user
    message and what answered it.

    Args:
        messages: the conversation.
        n_tokens: counts the tokens of one, with its template.
        n_max: most tokens.

    Returns:
        What is kept, and what was dropped.

    Raises:
        ContextFullError: what must stay does not fit by itself.
    """
    kept = list(messages)
    dropped: list[Message] = []
    while (n := n_tokens(kept)) > n_max:
        starts = [i for i, message in enumerate(kept) if message.get("role") == "user"]
        if len(starts) < 2:
            raise ContextFullError(n, n_max)
        turn = [i for i in range(starts[0], starts[1]) if kept[i].get("role") != "system"]
        dropped.extend(kept[i] for i in turn)
        kept = [message for i, message in enumerate(kept) if i not in turn]
    return kept, dropped
