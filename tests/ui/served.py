"""``racer-local ui`` as it is, with a record of what reaches the model.

    python served.py RECORD.jsonl ARGUMENTS...

writes a line for every prompt that is built, for every decode step and for every end. What is to be
stopped goes on until it is: a prompt that says "stop reading me" is never read to its end, and the
answer to one that says "stop me" is slow, as by a large model.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from racer_local.cli import main
from racer_local.decoding.answer import Answer
from racer_local.decoding.session import Session
from racer_local.speculation.drafter import StepOutcome


def record_ends(write: Callable[..., None]) -> None:
    end = Answer.close

    def close(answer: Answer) -> None:
        is_first = not answer._is_over
        end(answer)
        if is_first:
            write(ended=str(answer.finish_reason), n_tokens=len(answer.tokens))

    Answer.close = close  # type: ignore[method-assign]


def record_into(path: str) -> None:
    real = Session.stream

    def write(**entry: Any) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), **entry}) + "\n")

    def stream(
        model: Session,
        prompt: Sequence[int],
        *arguments: Any,
        on_step: Callable[[StepOutcome], None] | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        **named: Any,
    ) -> Answer:
        text = "".join(model.model.token_text(token) for token in prompt)
        write(prompt=text)

        def noted(outcome: StepOutcome) -> None:
            write(step=len(outcome.path))
            if on_step is not None:
                on_step(outcome)
            if "stop me" in text:
                time.sleep(0.1)

        def read(n_read: int, n_all: int) -> None:
            if on_prefill is not None:
                on_prefill(n_read, n_all)
            while n_read < n_all and "stop reading me" in text and not model.target.is_stopped:
                time.sleep(0.02)

        return real(model, prompt, *arguments, on_step=noted, on_prefill=read, **named)

    Session.stream = stream  # type: ignore[assignment,method-assign]
    record_ends(write)


if __name__ == "__main__":
    record_into(sys.argv[1])
    main(["ui", *sys.argv[2:]])
