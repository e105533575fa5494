"""From a request to what a session is asked. Runs on the compute thread."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from racer_local.backend.chain import ChainConfig
from racer_local.backend.model import LlamaModel
from racer_local.concurrency.time_limit import TooSlowError, time_limit
from racer_local.config import GenerationConfig
from racer_local.decoding.session import Session
from racer_local.errors import ConfigError
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

__all__ = ["Question", "ask_chat", "ask_completions", "detokenize", "require_known"]

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
_MAX_BIAS = 1e4
# What a template writes around a message has at least as many tokens.
_MESSAGE_TOKENS = 2
_TOOLS_HEAD = (
    "You can call these functions. To call one, answer with a JSON object of its name and its "
    'arguments within tags: <tool_call>{"name": "...", "arguments": {...}}</tool_call>\n'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One answer to be generated.

    Attributes:
        prompt: token ids.
        sampling: how tokens are chosen.
        limits: when it ends.
        reader: of the answer.
        echo: text to put before the answer.
        is_first: it is the first one about this prompt.
    """

    prompt: Sequence[int]
    sampling: ChainConfig
    limits: GenerationConfig
    reader: AnswerReader
    echo: str = ""
    is_first: bool = True


def ask_chat(session: Session, request: ChatRequest, config: ServeConfig) -> Iterator[Question]:
    """Yield the questions of a chat, one for each choice.

    Raises:
        ApiError: the conversation cannot be read by this model.
    """
    n_ctx = session.target.n_ctx
    _check_size(n_ctx, config, *(message.text for message in request.messages))
    _check_count(n_ctx, len(request.messages))
    text = _rendered(session, request, config)
    prompt = session.model.tokenize(text)
    grammar = grammar_for(request)
    is_thinking = grammar is None and text[-16:].rstrip().endswith("<think>")
    for i in range(request.n_choices):
        reader = AnswerReader(
            [function.name for function in request.offered],
            is_call=is_call_forced(request),
            is_thinking=is_thinking,
        )
        yield Question(
            prompt=prompt,
            sampling=_sampling(request, i, grammar=grammar, logprobs=request.n_top),
            limits=_limits(request),
            reader=reader,
            is_first=i == 0,
        )


def ask_completions(
    session: Session, request: CompletionRequest, config: ServeConfig
) -> Iterator[Question]:
    """Yield the questions of a completion request, one for each prompt and choice.

    Raises:
        ApiError: a prompt cannot be used.
        ConfigError: there is a suffix, and the model has no tokens to fill in the middle.
    """
    model = session.model
    for given in request.prompts:
        if isinstance(given, str):
            _check_size(session.target.n_ctx, config, given, request.suffix or "")
            prompt = _prompt_tokens(model, given, request.suffix or "")
        elif request.suffix:
            raise _invalid("suffix needs a prompt of text", "suffix")
        else:
            require_known(model, given, "prompt")
            prompt = given
        echo = ""
        if request.echo:
            echo = given if isinstance(given, str) else detokenize(model, given)
        for i in range(request.n_choices):
            yield Question(
                prompt=prompt,
                sampling=_sampling(request, i, logprobs=request.logprobs),
                limits=_limits(request),
                reader=AnswerReader(is_plain=True),
                echo=echo,
                is_first=i == 0,
            )


def _prompt_tokens(model: LlamaModel, text: str, suffix: str) -> list[int]:
    if not suffix:
        # Nothing at all is read as the beginning of a text.
        return model.tokenize(text) or ([] if model.bos is None else [model.bos])
    before, after, middle = model.fill_in_tokens()

    def plain(text: str) -> list[int]:
        return model.tokenize(text, add_special=False, parse_special=False)

    # What a tokenizer puts before a text is not wanted where it goes on.
    sign = "☺"
    end = plain(sign + suffix)[len(plain(sign)) :]
    head = model.tokenize("")
    return [*head, before, *plain(text), after, *end, middle]


def detokenize(model: LlamaModel, tokens: Sequence[int]) -> str:
    """Return the text of token ids, which must be in the vocabulary."""
    return model.detokenize(tokens).decode("utf-8", "replace")


def require_known(model: LlamaModel, tokens: Sequence[int], param: str) -> None:
    """Refuse token ids that the vocabulary does not have.

    Raises:
        ApiError: it has one.
    """
    if tokens and max(tokens) >= model.n_vocab:
        raise _invalid(f"token {max(tokens)} is not in the vocabulary of {model.n_vocab}", param)


def _invalid(message: str, param: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)


def _check_size(n_ctx: int, config: ServeConfig, *texts: str) -> None:
    """Refuse what cannot fit, before it is tokenized."""
    _check_fits("the prompt", sum(map(len, texts)), "characters", config.prompt_chars(n_ctx), n_ctx)


def _check_count(n_ctx: int, n_messages: int) -> None:
    """Refuse more messages than fit, however short they are."""
    n_most = n_ctx // _MESSAGE_TOKENS
    _check_fits("the conversation", n_messages, "messages", n_most, n_ctx)


def _check_fits(what: str, n: int, units: str, n_most: int, n_ctx: int) -> None:
    if n > n_most:
        raise ApiError(
            400,
            f"{what} has {n} {units}, which cannot fit into the context of {n_ctx} tokens; "
            f"at most {n_most} are read",
            code="context_length_exceeded",
            param="messages",
            details={"n_ctx": n_ctx},
        )


def _sampling(request: GenerationRequest, i: int, **more: Any) -> ChainConfig:
    given = {name: value for name in _SAMPLING if (value := getattr(request, name)) is not None}
    if "top_k" in given:
        given["top_k"] = max(0, given["top_k"])
    biases = {
        token: max(-_MAX_BIAS, min(_MAX_BIAS, bias))
        for token, bias in (request.logit_bias or {}).items()
    }
    return ChainConfig(**given, seed=_seed(request, i), logit_bias=biases, **more)


def _limits(request: GenerationRequest) -> GenerationConfig:
    return GenerationConfig(max_tokens=request.n_most, stop=tuple(request.stops))


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


def _rendered(session: Session, request: ChatRequest, config: ServeConfig) -> str:
    """Write a conversation as the model's template does.

    Raises:
        ApiError: there is no template, it refuses this conversation, or takes too long.
    """
    template = session.model.chat_template or ""
    options: dict[str, Any] = {}
    messages = [_plain(message) for message in request.messages]
    if "tool_calls" not in template:
        messages = _with_written_calls(messages)
    if request.offered and "tools" in template:
        options["tools"] = [tool.model_dump(exclude_none=True) for tool in request.tools or []]
    elif request.offered:
        messages = _with_described(messages, request.offered)
    try:
        with time_limit(config.template_s):
            return session.render(messages, **options)
    except TooSlowError:
        message = f"the model's chat template took more than {config.template_s:g} s"
    except ConfigError as error:
        message = str(error)
    raise ApiError(400, message, code="invalid_conversation", param="messages")
