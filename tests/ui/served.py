"""``racer-local ui`` as it is, with a record of what reaches the model.

    python served.py RECORD.jsonl ARGUMENTS...

writes a line for every prompt that is built and for every decode step. Prompts of several batches
are read slowly, as by a large model: else nobody could stop their reading.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from racer_local.cli import main
from racer_local.decoding.text_model import TextModel, TextStream
from racer_local.speculation.drafter import StepOutcome


def record_into(path: str) -> None:
    real = TextModel.stream

    def write(**entry: Any) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), **entry}) + "\n")

    def stream(
        model: TextModel,
        prompt: Sequence[int],
        *arguments: Any,
        on_step: Callable[[StepOutcome], None] | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        **named: Any,
    ) -> TextStream:
        write(prompt="".join(model.model.token_text(token) for token in prompt))

        def noted(outcome: StepOutcome) -> None:
            write(step=len(outcome.path))
            if on_step is not None:
                on_step(outcome)

        def read(n_read: int, n_all: int) -> None:
            if on_prefill is not None:
                on_prefill(n_read, n_all)
            if n_read < n_all:
                time.sleep(4)

        return real(model, prompt, *arguments, on_step=noted, on_prefill=read, **named)

    TextModel.stream = stream  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    record_into(sys.argv[1])
    main(["ui", *sys.argv[2:]])
