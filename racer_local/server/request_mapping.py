"""From a request to what ``RacerLlama`` is asked. Runs on the model's thread."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from racer_local.concurrency.time_limit import TooSlowError, time_limit
from racer_local.config import SamplingConfig
from racer_local.drop_in.chat import TEMPLATE_ERRORS, chat_request
from racer_local.drop_in.llama import RacerLlama
from racer_local.errors import ContextFullError
from racer_local.server.faults import ApiError
from racer_local.server.grammars import grammar_for, is_call_forced
from racer_local.server.limits import ServeConfig
from racer_local.server.schema import (
    ChatRequest,
    CompletionRequest,
    Function,
    GenerationRequest,
    Message,
)
from racer_local.server.tool_text import AnswerReader

__all__ = ["Question", "ask_chat", "ask_completions"]

_DEFAULTS = SamplingConfig()
_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
)
# What a template writes around a message has at least as many tokens.
_MESSAGE_TOKENS = 2
_TOOLS_HEAD = (
    "You can call these functions. To call one, answer with a JSON object of its name and its "
    'arguments within tags: <tool_call>{"name": "...", "arguments": {...}}</tool_call>\n'
)


class Question:
    """One answer to be generated.

    Attributes:
        prompt: text or token ids.
        options: of ``RacerLlama.stream_events``.
        reader: of the answer.
        echo: text to put before the answer.
        is_first: it is the first one about this prompt.
    """

    def __init__(
        self,
        prompt: str | list[int],
        options: dict[str, Any],
        reader: AnswerReader,
        *,
        echo: str = "",
        is_first: bool = True,
    ) -> None:
        """Take the parts."""
        self.prompt = prompt
        self.options = options
        self.reader = reader
        self.echo = echo
        self.is_first = is_first


def ask_chat(llama: RacerLlama, request: ChatRequest, config: ServeConfig) -> Iterator[Question]:
    """Yield the questions of a chat, one for each choice.

    Raises:
        ApiError: the conversation cannot be read by this model.
    """
    _check_size(llama, config, *(message.text for message in request.messages))
    _check_count(llama, len(request.messages))
    options = _options(request)
    options["logprobs"] = request.n_top is not None
    options["top_logprobs"] = request.n_top
    template = llama.metadata.get("tokenizer.chat_template", "")
    messages = [_plain(message) for message in request.messages]
    if "tool_calls" not in template:
        messages = _with_written_calls(messages)
    if request.offered:
        if "tools" in template:
            options["tools"] = [tool.model_dump(exclude_none=True) for tool in request.tools or []]
        else:
            messages = _with_described(messages, request.offered)
    grammar = grammar_for(request)
    asked = _rendered(llama, messages, options, config)
    prompt = asked.pop("prompt")
    if grammar is not None:
        asked["grammar"] = grammar
    is_thinking = grammar is None and _opens_thoughts(llama, prompt)
    for i in range(request.n_choices):
        reader = AnswerReader(
            [function.name for function in request.offered],
            is_call=is_call_forced(request),
            is_thinking=is_thinking,
        )
        yield Question(prompt, {**asked, "seed": _seed(request, i)}, reader, is_first=i == 0)


def ask_completions(
    llama: RacerLlama, request: CompletionRequest, config: ServeConfig
) -> Iterator[Question]:
    """Yield the questions of a completion request, one for each prompt and choice.

    Raises:
        ApiError: a prompt cannot be used.
    """
    options = _options(request)
    options["logprobs"] = request.logprobs
    for prompt in request.prompts:
        if isinstance(prompt, str):
            _check_size(llama, config, prompt, request.suffix or "")
        elif max(prompt) >= llama.n_vocab():
            raise ApiError(
                400,
                f"the prompt has token {max(prompt)}, but the vocabulary has {llama.n_vocab()}",
                code="invalid_value",
                param="prompt",
            )
        elif request.suffix:
            raise ApiError(
                400, "suffix needs a prompt of text", code="invalid_value", param="suffix"
            )
        echo = ""
        if request.echo:
            echo = prompt if isinstance(prompt, str) else detokenize(llama, prompt)
        for i in range(request.n_choices):
            asked = {**options, "seed": _seed(request, i)}
            if request.suffix:
                asked["suffix"] = request.suffix
            yield Question(prompt, asked, AnswerReader(is_plain=True), echo=echo, is_first=i == 0)


def detokenize(llama: RacerLlama, tokens: Sequence[int]) -> str:
    """Return the text of token ids, which must be in the vocabulary."""
    pieces = [llama._piece(token, tokens[:i]) for i, token in enumerate(tokens)]
    return b"".join(pieces).decode("utf-8", "replace")


def _check_size(llama: RacerLlama, config: ServeConfig, *texts: str) -> None:
    """Refuse what cannot fit, before it is tokenized.

    Raises:
        ApiError: it is too long.
    """
    n_chars, n_most = sum(map(len, texts)), config.prompt_chars(llama.n_ctx())
    if n_chars > n_most:
        raise ApiError(
            400,
            f"the prompt has {n_chars} characters, which cannot fit into the context of "
            f"{llama.n_ctx()} tokens; at most {n_most} are read",
            code="context_length_exceeded",
            param="messages",
            details={"n_ctx": llama.n_ctx()},
        )


def _check_count(llama: RacerLlama, n_messages: int) -> None:
    """Refuse more messages than fit, however short they are.

    Splitting a text at its control tokens takes time with the square of their number, in one
    native call that nothing ends.

    Raises:
        ApiError: there are too many.
    """
    n_most = llama.n_ctx() // _MESSAGE_TOKENS
    if n_messages > n_most:
        raise ApiError(
            400,
            f"the conversation has {n_messages} messages, which cannot fit into the context of "
            f"{llama.n_ctx()} tokens; at most {n_most} are read",
            code="context_length_exceeded",
            param="messages",
            details={"n_ctx": llama.n_ctx()},
        )


def _options(request: GenerationRequest) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: value for name in _SAMPLING if (value := getattr(request, name)) is not None
    }
    for name in _SAMPLING:
        if name not in options and hasattr(_DEFAULTS, name):
            options[name] = getattr(_DEFAULTS, name)
    options["top_k"] = max(0, options["top_k"])
    options["max_tokens"] = request.n_most
    options["stop"] = request.stops
    if request.logit_bias:
        options["logit_bias"] = {
            token: max(-1e4, min(1e4, bias)) for token, bias in request.logit_bias.items()
        }
    return options


def _seed(request: GenerationRequest, i: int) -> int:
    # llama.cpp takes the largest number for a wish for a random one.
    if request.seed is None or request.seed == -1:
        return secrets.randbelow(2**32 - 1)
    return (request.seed + i) % (2**32 - 1)


def _plain(message: Message) -> dict[str, Any]:
    """Return a message as templates expect it."""
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": message.text}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id or "",
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return plain


def _arguments(text: str) -> Any:
    # Templates write them as JSON themselves, and would quote a text.
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text


def _with_written_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write earlier calls into the text, for a template that does not know calls."""
    written = []
    for message in messages:
        calls = message.pop("tool_calls", [])
        texts = [
            f"<tool_call>{json.dumps(call['function'], ensure_ascii=False)}</tool_call>"
            for call in calls
        ]
        content = "\n".join(filter(None, [message["content"], *texts]))
        written.append({**message, "content": content})
    return written


def _with_described(
    messages: list[dict[str, Any]], functions: Sequence[Function]
) -> list[dict[str, Any]]:
    """Describe the functions in the system message, for a template that does not."""
    lines = [
        json.dumps(function.model_dump(exclude_none=True), ensure_ascii=False)
        for function in functions
    ]
    text = _TOOLS_HEAD + "\n".join(lines)
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _rendered(
    llama: RacerLlama, messages: list[dict[str, Any]], options: dict[str, Any], config: ServeConfig
) -> dict[str, Any]:
    try:
        with time_limit(config.template_s):
            return chat_request(llama, messages, options)
    except ContextFullError:
        raise
    except TooSlowError:
        message = f"the model's chat template took more than {config.template_s:g} s"
    except TEMPLATE_ERRORS as error:
        message = f"the model's chat template refuses this conversation: {error}"
    raise ApiError(400, message, code="invalid_conversation", param="messages")


def _opens_thoughts(llama: RacerLlama, prompt: str | Sequence[int]) -> bool:
    """Whether the template has written the beginning of the thoughts."""
    end = prompt[-16:] if isinstance(prompt, str) else detokenize(llama, list(prompt[-8:]))
    return end.rstrip().endswith("<think>")
