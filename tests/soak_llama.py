"""A long run: many short requests and one long chat; memory stays flat, and so does speed.

    python tests/soak_llama.py MODEL.gguf [REQUESTS] [TURNS]

Speed is compared at equal prompts: the chat is held before the requests and again after them, and
the requests' prompts come four times over. It is processor time, which other programs on the
machine do not change much. The test suite runs a short one (``tests/model/test_llama_soak.py``).
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from time import process_time

import psutil  # type: ignore[import-untyped]

from racer_local import RacerLlama

WORDS = "red cat saw one blue fish under old tree near house rain fell".split()  # noqa: SIM905
N_ROUNDS = 4


@dataclass
class Report:
    """Memory in MiB; seconds of processor time."""

    n_requests: int
    n_turns: int
    # From the end of the first tenth of the requests to the end of all.
    grown_mib: float
    # From the second chat's first third to its end: all of its memory was there once before.
    chat_grown_mib: float
    # From the end of the first chat to the end of the second.
    all_grown_mib: float
    # Medians over equal prompts in the first and the last quarter.
    request_first_s: float
    request_last_s: float
    # Medians over the turns of the first and of the second chat, which are the same.
    turn_first_s: float
    turn_last_s: float


def _memory() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


def _timed(work: Callable[[], None]) -> float:
    started = process_time()
    work()
    return process_time() - started


class Soak:
    """One model that does it all."""

    def __init__(self, path: str) -> None:
        """Open the model."""
        self.llama = RacerLlama(path, n_ctx=4096, overflow="drop_oldest")

    def requests(self, n: int) -> tuple[list[float], float]:
        """Return the seconds of each request, and how much memory grew."""
        generator = random.Random(1)
        prompts = [
            " ".join(generator.choices(WORDS, k=generator.randint(4, 12)))
            for _ in range(n // N_ROUNDS)
        ]
        seconds, started_at = [], 0.0
        for i in range(len(prompts) * N_ROUNDS):
            if i == n // 10:
                started_at = _memory()
            prompt = prompts[i % len(prompts)]
            seconds.append(_timed(lambda: self.llama(prompt, max_tokens=8, temperature=0)))  # noqa: B023 - called at once
        return seconds, _memory() - started_at

    def chat(self, n: int) -> tuple[list[float], float]:
        """Return the seconds of each turn, and how much memory grew."""
        generator = random.Random(2)
        messages: list[dict[str, object]] = []
        seconds, started_at = [], 0.0

        def turn() -> None:
            answer = self.llama.create_chat_completion(messages, max_tokens=24, temperature=0)
            messages.append(answer["choices"][0]["message"])

        for i in range(n):
            if i == n // 3:
                started_at = _memory()
            messages.append({"role": "user", "content": " ".join(generator.choices(WORDS, k=10))})
            seconds.append(_timed(turn))
        return seconds, _memory() - started_at


def soak(path: str, n_requests: int, n_turns: int) -> Report:
    """Run it and measure."""
    run = Soak(path)
    first_turns, _ = run.chat(n_turns)
    after_chat = _memory()
    requests, grown = run.requests(n_requests)
    last_turns, chat_grown = run.chat(n_turns)
    all_grown = _memory() - after_chat
    run.llama.close()
    n = len(requests) // N_ROUNDS
    return Report(
        n_requests=len(requests),
        n_turns=n_turns,
        grown_mib=grown,
        chat_grown_mib=chat_grown,
        all_grown_mib=all_grown,
        request_first_s=median(requests[:n]),
        request_last_s=median(requests[-n:]),
        turn_first_s=median(first_turns),
        turn_last_s=median(last_turns),
    )


if __name__ == "__main__":
    model, *numbers = sys.argv[1:]
    counts = [int(number) for number in numbers] + [2000, 60][len(numbers) :]
    sys.stdout.write(json.dumps(asdict(soak(model, *counts)), indent=1) + "\n")
