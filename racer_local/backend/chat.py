"""Renders a model's own chat template.

A template comes with the model file, from whoever made it. llama-cpp-python renders it in
Jinja's immutable sandbox, which gives it no way to Python's internals, to files or to objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from jinja2 import TemplateError
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from racer_local.errors import ConfigError

__all__ = ["MAX_TEMPLATE_CHARS", "TEMPLATE_ERRORS", "Message", "render_chat"]

Message: TypeAlias = Mapping[str, Any]

MAX_TEMPLATE_CHARS = 256 * 1024
# What a template can raise from inside the sandbox, whatever it does.
TEMPLATE_ERRORS = (
    TemplateError,
    ArithmeticError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@lru_cache(maxsize=4)
def _formatter(template: str, bos_token: str, eos_token: str) -> Jinja2ChatFormatter:
    """Compile a template: milliseconds, which every answer would wait for."""
    return Jinja2ChatFormatter(template, eos_token=eos_token, bos_token=bos_token)


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    bos_token: str = "",
    eos_token: str = "",
    **options: Any,
) -> str:
    """Write a conversation the way the model was trained to read it, up to the answer.

    Args:
        template: Jinja source from the model file.
        messages: each with ``role`` and ``content``.
        bos_token: text of the begin-of-sequence token.
        eos_token: text of the end-of-sequence token.
        **options: further variables of the template, such as ``tools`` and ``tool_choice``.

    Raises:
        ConfigError: the template is broken, or refuses these messages; with its own reason.
    """
    if not messages:
        raise ConfigError("the conversation is empty; give at least one message")
    if len(template) > MAX_TEMPLATE_CHARS:
        raise ConfigError(f"the chat template has {len(template)} characters; that cannot be right")
    try:
        formatter = _formatter(template, bos_token, eos_token)
        prompt: str = formatter(messages=list(messages), **options).prompt
    except TEMPLATE_ERRORS as e:
        raise ConfigError(f"the model's chat template refuses this conversation: {e}") from e
    return prompt
