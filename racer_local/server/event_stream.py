"""From an answer's events to what the event loop writes. Runs on the model's thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from time import sleep

from racer_local.drop_in.answer import StreamEvent
from racer_local.drop_in.llama import RacerLlama
from racer_local.server.faults import ApiError
from racer_local.server.jobs import Job
from racer_local.server.request_mapping import Question
from racer_local.server.tool_text import Bit
from racer_local.speculation.logprobs import TokenLogprobs
from racer_local.speculation.stats import Stats

__all__ = ["Delta", "Figures", "Final", "Place", "tell"]

# After its first part an answer waits for so long: the event loop and a client on the same machine
# get a processor before the next step takes all of them, and the part arrives some 4 ms earlier.
_FIRST_PAUSE_S = 0.001


@dataclass(frozen=True, slots=True)
class Place:
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
        places: log probabilities, where they were asked for.
    """

    index: int
    bits: list[Bit]
    places: list[Place] = field(default_factory=list)


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


def tell(
    job: Job,
    index: int,
    question: Question,
    llama: RacerLlama,
    on_figures: Callable[[Figures], None],
) -> None:
    """Generate an answer and put its parts into the job: one for each decode step.

    Each part wakes the event loop, which takes the processor from the next step.

    Raises:
        ApiError: it was cut off because the server stops.
    """
    waiting: list[Place] = []
    bits: list[Bit] = []
    n_answer = 0
    is_first = True
    if question.echo:
        job.put(Delta(index, [Bit("content", question.echo)]))
    events = llama.stream_events(question.prompt, handle=job.handle, ahead=True, **question.options)
    # An error would keep the frame, and with it the call, unfinished.
    with closing(events):
        for event in events:
            if event.token is not None:
                n_answer += 1
                if event.logprobs is not None:
                    waiting.append(_place(llama, event.logprobs))
            if event.text:
                bits += question.reader.push(event.text)
            if event.finish_reason is not None:
                bits += question.reader.finish()
            # The model's own token is the last one of a step.
            is_told = event.source == "target" and (bits or event.finish_reason is not None)
            if is_told and (bits or waiting):
                job.put(Delta(index, _joined(bits), waiting))
                bits, waiting = [], []
                if is_first:
                    is_first = False
                    sleep(_FIRST_PAUSE_S)
            if event.finish_reason is not None:
                figures = _figures(event.stats, n_answer, question, llama)
                on_figures(figures)
                job.put(Final(index, _reason(event, question), figures))


def _joined(bits: list[Bit]) -> list[Bit]:
    """Make one bit of neighbours that go on with the same text."""
    joined: list[Bit] = []
    for bit in bits:
        if joined and bit.kind == joined[-1].kind != "call":
            joined[-1] = Bit(bit.kind, joined[-1].text + bit.text)
        else:
            joined.append(bit)
    return joined


def _reason(event: StreamEvent, question: Question) -> str:
    if event.finish_reason == "cancelled":
        raise ApiError(503, "the answer was cut off", code="cancelled")
    if question.reader.n_calls and event.finish_reason == "stop":
        return "tool_calls"
    return str(event.finish_reason)


def _place(llama: RacerLlama, logprobs: TokenLogprobs) -> Place:
    top = tuple((llama._piece(token, ()), value) for token, value in logprobs.top)
    return Place(llama._piece(logprobs.token, ()), logprobs.logprob, top)


def _figures(stats: Stats, n_answer: int, question: Question, llama: RacerLlama) -> Figures:
    return Figures(
        n_prompt=stats.n_prompt,
        n_cached=stats.n_reused,
        n_answer=n_answer,
        n_drafted=stats.n_drafted,
        n_accepted=stats.n_accepted,
        n_steps=stats.n_steps,
        prefill_s=stats.prefill_s,
        decode_s=stats.decode_s,
        counts_prompt=question.is_first,
        speedup=llama.estimated_speedup(stats),
        by_source={
            source.name.lower(): (count.drafted, count.accepted)
            for source, count in stats.by_source.items()
        },
    )
