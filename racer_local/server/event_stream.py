"""From an answer's events to what the event loop writes. Runs on the compute thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from racer_local.backend.model import LlamaModel
from racer_local.concurrency.call_queue import Call
from racer_local.decoding.answer import Answer
from racer_local.decoding.session import Session
from racer_local.server.faults import ApiError
from racer_local.server.request_mapping import Question
from racer_local.server.tool_text import Bit
from racer_local.speculation.logprobs import TokenLogprobs

__all__ = ["Delta", "Figures", "Final", "Logprob", "answer_steps"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token of an answer with log probabilities.

    Attributes:
        token: its bytes.
        logprob: its log probability.
        top: the likeliest tokens' bytes and log probabilities.
    """

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]


@dataclass(slots=True)
class Delta:
    """The next part of an answer.

    Attributes:
        index: of the choice.
        bits: pieces of the answer.
        logprobs: log probabilities, where they were asked for.
    """

    index: int
    bits: list[Bit] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one answer took; times in seconds.

    Attributes:
        counts_prompt: whether its prompt is to be counted, which several choices share.
        speedup: estimated against plain decoding; None where it is not known.
    """

    n_prompt: int
    n_cached: int
    n_answer: int
    n_drafted: int
    n_accepted: int
    n_steps: int
    prefill_s: float
    decode_s: float
    counts_prompt: bool
    speedup: float | None
    by_source: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Final:
    """The end of an answer.

    Attributes:
        index: of the choice.
        finish_reason: in OpenAI's words.
        figures: of the answer.
    """

    index: int
    finish_reason: str
    figures: Figures


def answer_steps(
    session: Session,
    call: Call,
    index: int,
    question: Question,
    put: Callable[..., None],
    on_figures: Callable[[Figures], None],
) -> Iterator[None]:
    """Generate an answer within a call; yields after every decode step.

    Args:
        session: the model.
        call: being served.
        index: of the choice.
        question: what is asked.
        put: called with a ``Delta`` after each step that brought something to show, and with the
            ``Final`` at the end. Each time wakes the event loop.
        on_figures: called at the end.

    Raises:
        ApiError: it was cut off because the server stops.
    """
    reader = question.reader
    delta = Delta(index, [Bit("content", question.echo)] if question.echo else [])
    with session.stream(
        question.prompt, question.sampling, question.limits, errors="ignore", call=call
    ) as answer:
        for event in answer:
            if event.logprobs is not None:
                delta.logprobs.append(_logprob(session.model, event.logprobs))
            if event.text:
                delta.bits += reader.push(event.text)
            # The model's own token is the last one of a step.
            if event.token is not None and event.source == "target":
                if delta.bits:
                    put(delta)
                    delta = Delta(index)
                yield
    delta.bits += reader.finish()
    figures = _figures(session, answer, question)
    on_figures(figures)
    if answer.finish_reason == "cancelled":
        raise ApiError(503, "the answer was cut off", code="cancelled")
    is_called = reader.n_calls and answer.finish_reason == "stop"
    final = Final(index, "tool_calls" if is_called else str(answer.finish_reason), figures)
    put(*([delta] if delta.bits or delta.logprobs else []), final)


def _logprob(model: LlamaModel, logprobs: TokenLogprobs) -> Logprob:
    top = tuple((model.piece(token), value) for token, value in logprobs.top)
    return Logprob(model.piece(logprobs.token), logprobs.logprob, top)


def _figures(session: Session, answer: Answer, question: Question) -> Figures:
    stats = answer.stats
    return Figures(
        n_prompt=stats.n_prompt,
        n_cached=stats.n_reused,
        n_answer=len(answer.tokens),
        n_drafted=stats.n_drafted,
        n_accepted=stats.n_accepted,
        n_steps=stats.n_steps,
        prefill_s=stats.prefill_s,
        decode_s=stats.decode_s,
        counts_prompt=question.is_first,
        speedup=session.estimated_speedup(stats),
        by_source={
            source.name.lower(): (count.drafted, count.accepted)
            for source, count in stats.by_source.items()
        },
    )
