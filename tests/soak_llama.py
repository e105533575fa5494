"""A long run: many short requests and one long chat; memory stays flat, and so does speed.

    python tests/soak_llama.py MODEL.gguf [REQUESTS] [TURNS]

The test suite runs a short one (``tests/model/test_llama_soak.py``).
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter

import psutil  # type: ignore[import-untyped]

from racer_local import RacerLlama

WORDS = "red cat saw one blue fish under old tree near house rain fell".split()  # noqa: SIM905


@dataclass
class Report:
    """Memory in MiB; seconds are medians over the first and the last quarter."""

    n_requests: int
    n_turns: int
    grown_mib: float
    first_s: float
    last_s: float
    chat_grown_mib: float
    turn_first_s: float
    turn_last_s: float


def _memory() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


def _ends(seconds: list[float]) -> tuple[float, float]:
    n = max(1, len(seconds) // 4)
    return median(seconds[:n]), median(seconds[-n:])


def soak(path: str, n_requests: int, n_turns: int) -> Report:
    """Run it and measure; memory counts from a tenth of the requests on."""
    llama = RacerLlama(path, n_ctx=2048, overflow="drop_oldest")
    generator = random.Random(1)
    seconds = []
    started_at = 0.0
    for i in range(n_requests):
        if i == n_requests // 10:
            started_at = _memory()
        prompt = " ".join(generator.choices(WORDS, k=generator.randint(4, 12)))
        started = perf_counter()
        llama(prompt, max_tokens=8, temperature=0)
        seconds.append(perf_counter() - started)
    grown = _memory() - started_at
    messages = []
    turns = []
    before_chat = 0.0
    for i in range(n_turns):
        if i == n_turns // 3:
            before_chat = _memory()
        messages.append({"role": "user", "content": " ".join(generator.choices(WORDS, k=10))})
        started = perf_counter()
        answer = llama.create_chat_completion(messages, max_tokens=24, temperature=0)
        turns.append(perf_counter() - started)
        messages.append(answer["choices"][0]["message"])
    chat_grown = _memory() - before_chat
    llama.close()
    return Report(n_requests, n_turns, grown, *_ends(seconds), chat_grown, *_ends(turns))


if __name__ == "__main__":
    model, *numbers = sys.argv[1:]
    counts = [int(number) for number in numbers] + [2000, 60][len(numbers) :]
    sys.stdout.write(json.dumps(asdict(soak(model, *counts)), indent=1) + "\n")
