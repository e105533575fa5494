"""Conversations: what upstream's chat handlers make of them, and what to do with long ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import llama_cpp
from llama_cpp.llama_grammar import JSON_GBNF

from racer_local.backend.chat import TEMPLATE_ERRORS
from racer_local.errors import ContextFullError

__all__ = [
    "TEMPLATE_ERRORS",
    "Message",
    "Shortened",
    "chat_request",
    "drop_oldest_turns",
    "json_grammar",
    "needed_criteria",
    "with_schema",
]

Message: TypeAlias = Mapping[str, Any]


class _Captured(Exception):  # noqa: N818 - a jump, no error
    """Carries what a chat handler wanted to have completed."""

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__()
        self.request = request


class _Capture:
    """Stands in for a model before a chat handler; everything but completing is the model's."""

    def __init__(self, llama: object) -> None:
        self._llama = llama

    def __getattr__(self, name: str) -> object:
        return getattr(self._llama, name)

    def create_completion(self, **request: Any) -> None:
        raise _Captured(request)


class Shortened:
    """Stands in for a model before a chat handler, to say that messages were left out."""

    def __init__(self, llama: Any, n_dropped: int) -> None:
        """Complete with ``llama``, whose statistics are to tell ``n_dropped``."""
        self._llama = llama
        self._n_dropped = n_dropped

    def __getattr__(self, name: str) -> Any:
        """Everything but completing is the model's."""
        return getattr(self._llama, name)

    def create_completion(self, **request: Any) -> Any:
        """Complete, and have it noted."""
        answers = self._llama._create_completion(**request, n_dropped=self._n_dropped)
        return answers if request.get("stream") else next(answers)


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


def json_grammar(schema: Mapping[str, Any] | None) -> llama_cpp.LlamaGrammar:
    """Return a grammar of the JSON that meets a schema; None is any JSON.

    Unlike in chats, a schema that upstream cannot read is not quietly taken for any JSON: what
    its converter raises (of whatever kind) is raised.
    """
    if schema is None:
        return llama_cpp.LlamaGrammar.from_string(JSON_GBNF, verbose=False)
    return llama_cpp.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)


def chat_request(
    llama: object, messages: Sequence[Message], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the completion request that the model's chat handler makes of a conversation.

    Args:
        llama: the model.
        messages: the conversation.
        options: those of ``create_chat_completion``.
    """
    try:
        llama_cpp.Llama.create_chat_completion(_Capture(llama), messages=list(messages), **options)
    except _Captured as captured:
        return captured.request
    raise TypeError("this chat handler does not complete a prompt, so it cannot be used here")


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
