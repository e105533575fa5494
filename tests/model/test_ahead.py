"""Steps that are computed ahead change nothing but the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from racer_local import RacerLlama

PROMPT = "one two one two three one two"


@pytest.fixture(params=["llama", "mamba"])
def llama(request: pytest.FixtureRequest, tiny_path: Callable[[str], Path]) -> Iterator[RacerLlama]:
    path = str(tiny_path(request.param))
    # Not ``auto``: what it drafts may be another thing each time, for it goes by the clock.
    with closing(RacerLlama(path, n_ctx=256, draft="racer", budget=8)) as llama:
        yield llama


def read(llama: RacerLlama, n_read: int, **options: Any) -> tuple[list[Any], list[int]]:
    """Take some events, and return what the cache holds after that."""
    llama._require_session().engine.forget()
    events = llama.stream_events(PROMPT, temperature=0, **options)
    taken = []
    for event in events:
        taken.append((event.token, event.text, event.source, event.step, event.finish_reason))
        if len(taken) == n_read:
            break
    events.close()
    return taken, list(llama._require_session().target.tokens)


@pytest.mark.parametrize("n_read", [1, 2, 3, 7, 1000])
def test_the_same_events_come_and_the_same_text_stays(llama: RacerLlama, n_read: int) -> None:
    whole, _ = read(llama, 1000, max_tokens=24)
    text = "".join(event[1] for event in whole)
    for options in ({"max_tokens": 24}, {"max_tokens": 24, "stop": [text[10:13]]}):
        usual = read(llama, n_read, **options)
        assert read(llama, n_read, **options, ahead=True) == usual
    # And whoever asks next is served.
    assert llama(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2


def test_log_probabilities_stay_with_their_tokens(llama: RacerLlama) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "logprobs": 2, "temperature": 0}
    usual, ahead = (
        [event.logprobs for event in llama.stream_events(PROMPT, **options, ahead=is_ahead)]
        for is_ahead in (False, True)
    )
    assert [row and row.token for row in ahead] == [row and row.token for row in usual]


def test_an_error_of_a_step_ahead_is_raised_where_it_is_waited_for(llama: RacerLlama) -> None:
    n_calls = 0

    def process(ids: Any, logits: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            raise ValueError("enough")
        return logits

    options: dict[str, Any] = {"max_tokens": 12, "logits_processor": [process]}
    events = llama.stream_events(PROMPT, **options, ahead=True)
    with pytest.raises(ValueError, match="enough"):
        list(events)
    n_calls = 0
    events = llama.stream_events(PROMPT, **options, ahead=True)
    next(events)
    events.close()
    assert llama(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2
