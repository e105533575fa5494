"""Inputs that many model tests share, and what plain greedy decoding makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from racer_local.concurrency.compute_thread import CallerThread
from racer_local.config import DraftConfig, GenerationConfig, ModelConfig, SamplingConfig
from racer_local.decoding.engine import FinishReason
from racer_local.decoding.session import Session

# What the default model says after these is certain: the likeliest token is ahead of the second
# by more than 2 at every place, and processors round their logits differently by less than 1.
STEP = "".join(f"Step {i}: open\n" for i in range(1, 9)) + "Step 9:"
STEP_ANSWER = " open\nStep 10: open\nStep 11: open\nStep 12: open\nStep 13: open\nStep "
EMOJI = "👍🎉🏋️‍♀️🚀\n" * 6
CODE = (
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\n"
    "def mul(a, b):\n    return"
)
CATS = "cat dog cat dog cat dog cat dog cat"
LINE = "The quick brown fox number {} jumps over the lazy dog.\n"
LINES60 = "".join(LINE.format(i) for i in range(1, 61)) + "The quick brown fox number 61"
SAY_OK = "Reply with the single word OK."
OK_CHAT = [
    *(
        m
        for _ in range(3)
        for m in ({"role": "user", "content": SAY_OK}, {"role": "assistant", "content": "OK."})
    ),
    {"role": "user", "content": SAY_OK},
]

GREEDY = SamplingConfig(temperature=0)

PROMPTS = [
    json.loads(line)["prompt"]
    for line in (Path(__file__).parent / "data" / "prompts.jsonl").read_text("utf-8").splitlines()
]


def open_session(config: ModelConfig, draft: DraftConfig | None = None, **more: Any) -> Session:
    """Open a model that computes on the thread that asks, as all of a test's do."""
    return Session(config, draft, compute=CallerThread(), **more)


def generate(
    model: Session,
    prompt: list[int],
    n: int | None,
    draft: DraftConfig | None = None,
    sampling: SamplingConfig = GREEDY,
) -> tuple[list[int], FinishReason | None]:
    """Generate on an open model; returns the tokens and why they ended."""
    if draft is not None:
        model.engine.use(draft)
    generation = model.engine.generate(prompt, sampling, GenerationConfig(max_tokens=n))
    return [event.token for event in generation], generation.finish_reason
