"""Eight clients at once, some of which leave at any moment: nobody else notices.

    RACER_SOAK_SECONDS=180 python -m pytest -s -m slow tests/server/test_soak.py

The seconds are those that the server computes, so that a busy machine soaks as long as an idle one.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest

if TYPE_CHECKING:
    from conftest import Served  # type: ignore[attr-defined]

pytestmark = [pytest.mark.server, pytest.mark.slow]

CHAT = "/v1/chat/completions"
SECONDS = float(os.environ.get("RACER_SOAK_SECONDS", "20"))
N_CLIENTS = 8
OPTIONS = ("--ctx", "2048", "--exact")
TOPICS = ("the sea", "a dog", "snow", "tea", "paper", "trains", "clocks", "bread")
CODE = "".join(f"def step_{i}(x):\n    return x * {i} + {i % 7}\n\n" for i in range(12))


def bodies() -> list[dict[str, Any]]:
    """Short questions, a long text with several questions about it, and a second turn."""
    talks = [[f"Write {n} words about {topic}."] for n, topic in enumerate(TOPICS, 5)]
    talks += [[f"{CODE}\n{task}"] for task in ("What does step_3 do?", "Repeat step_7.")]
    talks += [[f"{CODE}\nRepeat step_7.", CODE[200:400], "And step_8?"]]
    roles = ("user", "assistant")
    return [
        {
            "messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)],
            "max_tokens": 16 + 3 * n,
            "temperature": 0,
        }
        for n, texts in enumerate(talks)
    ]


@dataclass
class Report:
    """What happened.

    Attributes:
        most_before: most answers that were completed while one client waited for its own. In a
            queue that is fair they are those of the other clients, once each.
        longest_wait_s: from a request to the end of its answer.
        fair_wait_s: the longest that an answer took alone, times the number of clients.
        mib: memory of the server from a third of the run on, sampled.
    """

    cpu_s: float = 0
    n_whole: int = 0
    n_streamed: int = 0
    n_left: int = 0
    per_client: dict[int, int] = field(default_factory=dict)
    wrong: list[Any] = field(default_factory=list)
    most_before: int = 0
    longest_wait_s: float = 0
    fair_wait_s: float = 0
    n_tokens: float = 0
    n_cancelled: float = 0
    mib: list[float] = field(default_factory=list)

    @property
    def grown_mib(self) -> float:
        """Growth between the first and the last quarter of the samples."""
        n = max(1, len(self.mib) // 4)
        return median(self.mib[-n:]) - median(self.mib[:n])


def text_of(choice: dict[str, Any]) -> tuple[str, str]:
    return choice["message"]["content"], choice["finish_reason"]


def streamed(client: httpx.Client, body: dict[str, Any]) -> tuple[str, str]:
    """Read a stream to its end and put it together."""
    text, reason, is_done = "", "", False
    with client.stream("POST", CHAT, json={**body, "stream": True}) as response:
        for line in response.iter_lines():
            is_done = line == "data: [DONE]"
            if line and not is_done:
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                text += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
            if is_done:
                break
    assert is_done
    return text, reason


class Soak:
    """Visitors of a server, and what they saw."""

    def __init__(self, served: Served, expected: list[tuple[str, str]], report: Report) -> None:
        self.served = served
        self.expected = expected
        self.report = report
        self.process = psutil.Process(served.process.pid)
        self.began_s = self.cpu_s()
        self.lock = threading.Lock()
        self.n_completed = 0

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    @property
    def is_over(self) -> bool:
        return self.cpu_s() - self.began_s >= SECONDS

    def visit(self, number: int) -> None:
        random_ = random.Random(number)
        asked = bodies()
        with self.served.client() as client:
            while not self.is_over:
                i = random_.randrange(len(asked))
                if random_.random() < 0.35:
                    self.leave(client, asked[i], random_)
                else:
                    self.stay(client, asked[i], i, number, is_stream=random_.random() < 0.4)

    def leave(self, client: httpx.Client, body: dict[str, Any], random_: random.Random) -> None:
        """Go after some lines, or after some time, which may be while the prompt is read."""
        n_lines = random_.randrange(20)
        patience = httpx.Timeout(300, read=random_.choice((0.01, 0.3, 1, 300)))
        try:
            with client.stream(
                "POST", CHAT, json={**body, "stream": True}, timeout=patience
            ) as response:
                for n, _ in enumerate(response.iter_lines()):
                    if n >= n_lines:
                        break
        except httpx.TimeoutException:
            pass
        with self.lock:
            self.report.n_left += 1

    def stay(
        self, client: httpx.Client, body: dict[str, Any], i: int, number: int, *, is_stream: bool
    ) -> None:
        report = self.report
        before, began = self.n_completed, time.monotonic()
        if is_stream:
            got = streamed(client, body)
        else:
            response = client.post(CHAT, json=body)
            assert response.status_code == 200, response.text
            got = text_of(response.json()["choices"][0])
        with self.lock:
            report.most_before = max(report.most_before, self.n_completed - before)
            report.longest_wait_s = max(report.longest_wait_s, time.monotonic() - began)
            self.n_completed += 1
            report.per_client[number] = report.per_client.get(number, 0) + 1
            if is_stream:
                report.n_streamed += 1
            else:
                report.n_whole += 1
            if got != self.expected[i]:
                report.wrong.append((i, got, self.expected[i]))

    def watch(self) -> None:
        # What is allocated once, as the saved texts, is there after a third.
        due_s = SECONDS / 3
        while not self.is_over:
            if self.cpu_s() - self.began_s >= due_s:
                self.report.mib.append(round(self.process.memory_info().rss / 2**20, 1))
                due_s += SECONDS / 48
            time.sleep(0.1)


def soak(served: Served, expected: list[tuple[str, str]], alone_s: float) -> Report:
    report = Report(fair_wait_s=N_CLIENTS * alone_s)
    run = Soak(served, expected, report)
    with ThreadPoolExecutor(N_CLIENTS + 1) as pool:
        watching = pool.submit(run.watch)
        list(pool.map(run.visit, range(N_CLIENTS)))
        watching.result()
    report.cpu_s = run.cpu_s() - run.began_s
    served.wait_until_idle()
    counted = served.metrics()
    report.n_tokens = counted["racer_tokens_total['generated']"]
    report.n_cancelled = counted["racer_cancelled_total[]"]
    return report


def test_clients_that_come_and_go_change_nobodys_answer(
    start_server: Callable[..., Served], smol_path: Path
) -> None:
    expected = []
    slowest = 0.0
    # Alone, and without drafts: what exact drafting has to give.
    plain = start_server("--model", str(smol_path), *OPTIONS, "--draft", "off").wait()
    with plain.client() as client:
        for body in bodies():
            began = time.monotonic()
            expected.append(text_of(client.post(CHAT, json=body).json()["choices"][0]))
            slowest = max(slowest, time.monotonic() - began)
    assert plain.stop() == 0
    served = start_server("--model", str(smol_path), *OPTIONS).wait()
    report = soak(served, expected, slowest)
    told = asdict(report) | {"grown_mib": report.grown_mib, "lines": Counter(served.lines)}
    sys.stdout.write(json.dumps(told, indent=1) + "\n")
    assert not report.wrong
    assert min(report.per_client.get(number, 0) for number in range(N_CLIENTS)) > 0
    # The one that is being served, and one of each other client that came before.
    assert report.most_before <= N_CLIENTS
    assert report.grown_mib < 16
    assert not any("rror" in line or "Traceback" in line for line in served.lines)
    assert served.stop() == 0
