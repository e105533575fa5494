"""Measure what HTTP adds to the engine's own times.

    python -m racer_local.research.bench_server [--model NAME] [--rounds N] [--max-tokens N]
                                                [--draft M]

One process serves a model and another one asks, as in real use. The same questions are answered
greedily by the engine alone (on its thread, token ids only), by ``Session.stream`` and
through HTTP, in turning order. Before each answer everything is forgotten and the prompt is read
once, so that each finds it in the cache and nobody drafts from another one's answer. Reported are
the time to the first token, and the speed of the tokens after it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING, NamedTuple

from racer_local.config import DraftConfig, GenerationConfig, ModelConfig

if TYPE_CHECKING:
    from racer_local.decoding.session import Session

__all__ = ["Measured", "main", "summary"]

_MODEL = "smollm2-135m-instruct"
_N_CTX = 2048
_PAUSE_S = 0.05
_WAYS = ("engine", "library", "http")
_CHAT = "/v1/chat/completions"


class Measured(NamedTuple):
    """One answer.

    Attributes:
        n_tokens: of the answer.
        first_s: from the question to the first token.
        rest_s: from the first token to the end.
        text: the answer, where it was made into text.
    """

    n_tokens: int
    first_s: float
    rest_s: float
    text: str = ""


def summary(answers: dict[str, list[Measured]]) -> dict[str, dict[str, float]]:
    """Return each way's figures, and what it takes more than the engine alone.

    Speeds are sums over all answers; times are medians, so is the difference of each pair.
    """
    base = answers["engine"]
    figures = {}
    for way, mine in answers.items():
        extra = [a.first_s - b.first_s for a, b in zip(mine, base, strict=True)]
        speed, own = (
            sum(a.n_tokens - 1 for a in all_) / sum(a.rest_s for a in all_) for all_ in (mine, base)
        )
        figures[way] = {
            "first_ms": 1e3 * median(a.first_s for a in mine),
            "extra_ms": 1e3 * median(extra),
            "most_extra_ms": 1e3 * max(extra),
            "tokens_per_s": speed,
            "relative": speed / own,
        }
    return figures


class _Bench:
    """An open model that is served, and a client in another process."""

    def __init__(self, session: Session, client: subprocess.Popen[str], n_tokens: int) -> None:
        self._session = session
        self._client = client
        self._n_tokens = n_tokens

    def _generate(self, tokens: list[int], n_tokens: int) -> Measured:
        from racer_local.backend.chain import ChainConfig, ChainSampler

        session = self._session
        began = perf_counter()
        sampler = ChainSampler(ChainConfig(temperature=0.0), session.target, tokens)
        limits = GenerationConfig(max_tokens=n_tokens)
        first = 0.0
        n = 0
        generation = session.engine.generate(tokens, None, limits, make_sampler=lambda: sampler)
        with generation as events:
            for _ in events:
                first = first or perf_counter()
                n += 1
        return Measured(n, first - began, perf_counter() - first)

    def _prepare(self, tokens: list[int]) -> None:
        self._session.engine.forget()
        self._generate(tokens, 1)

    def answer(self, way: str, messages: list[dict[str, str]]) -> Measured:
        """Answer a conversation whose prompt is in the cache."""
        session = self._session
        tokens = session.chat_tokens(messages)
        session.run(lambda: self._prepare(tokens))
        # As between two questions of a person: nobody finds threads that are still awake.
        sleep(_PAUSE_S)
        if way == "engine":
            return session.run(lambda: self._generate(tokens, self._n_tokens))
        if way == "library":
            return self._stream(tokens)
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        body = {
            "messages": messages,
            "stream": True,
            "max_tokens": self._n_tokens,
            "temperature": 0.0,
        }
        self._client.stdin.write(json.dumps(body) + "\n")
        self._client.stdin.flush()
        told = json.loads(self._client.stdout.readline())
        if told["n_cached"] != len(tokens) - 1:
            raise RuntimeError(f"{told['n_cached']} of {len(tokens)} prompt tokens were cached")
        return Measured(told["n_tokens"], told["first_s"], told["rest_s"], told["text"])

    def _stream(self, tokens: list[int]) -> Measured:
        from racer_local.backend.chain import ChainConfig

        began = perf_counter()
        first = 0.0
        n = 0
        limits = GenerationConfig(max_tokens=self._n_tokens)
        with self._session.stream(tokens, ChainConfig(temperature=0.0), limits) as answer:
            for event in answer:
                first = first or perf_counter()
                n += event.token is not None
        return Measured(n, first - began, perf_counter() - first, answer.text)


def _ask_from_stdin(url: str) -> None:
    """Be the client: a body per line of stdin, what it took per line of stdout."""
    host, port = url.removeprefix("http://").split(":")
    for line in sys.stdin:
        body = json.loads(line) | {"stream_options": {"include_usage": True}}
        sent = json.dumps(body).encode()
        lines = []
        # The server closes what is idle for some seconds; connecting is not what is measured.
        connection = HTTPConnection(host, int(port))
        connection.connect()
        began = perf_counter()
        connection.request("POST", _CHAT, sent, {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            # Read now and understood later: a client must not take the model's processor.
            for told in response:
                if told != b"\n":
                    lines.append((perf_counter(), told))
        connection.close()
        events = [
            (at, json.loads(told[6:])) for at, told in lines if not told.endswith(b"[DONE]\n")
        ]
        texts = [
            (at, choice["delta"].get("content") or "")
            for at, event in events
            for choice in event["choices"]
        ]
        first = next(at for at, text in texts if text)
        usage = events[-1][1]["usage"]
        result = {
            "first_s": first - began,
            "rest_s": texts[-1][0] - first,
            "n_tokens": usage["completion_tokens"],
            "n_cached": usage["prompt_tokens_details"]["cached_tokens"],
            "text": "".join(text for _, text in texts),
        }
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


@contextlib.contextmanager
def _served(path: Path, draft: DraftConfig) -> Iterator[tuple[Session, str]]:
    """Serve a model in this process, as ``racer-local serve`` does."""
    from racer_local.decoding.session import Session
    from racer_local.server.app import make_server_app
    from racer_local.server.host import ModelHost
    from racer_local.server.limits import ServeConfig
    from racer_local.server.service import ApiService
    from racer_local.web.origins import TrustedNames
    from racer_local.web.runner import bind, serve, url_of

    config = ModelConfig(
        path=path, n_ctx=_N_CTX, max_nodes=draft.budget, max_leaves=draft.max_leaves
    )
    is_loaded, is_over = threading.Event(), threading.Event()
    host = ModelHost(
        lambda calls: Session(config, draft, calls=calls),
        name=path.stem,
        n_ctx=_N_CTX,
        n_ctx_train=0,
        max_queue=1,
        on_state=lambda _: is_loaded.set(),
    )
    app = make_server_app(ApiService(host, ServeConfig()), TrustedNames())
    listener = bind("127.0.0.1", 0)
    url = url_of(listener)
    run = partial(
        serve, app, listener, on_ready=host.start, on_stop=host.stop, should_stop=is_over.is_set
    )
    thread = threading.Thread(target=run)
    thread.start()
    try:
        is_loaded.wait()
        if host.error is not None:
            raise host.error
        yield host.session(), url
    finally:
        is_over.set()
        thread.join()
        host.wait_closed()


@contextlib.contextmanager
def _client_of(url: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "racer_local.research.bench_server", "--client", url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8") as client:
        yield client
        assert client.stdin is not None
        client.stdin.close()


def _run(bench: _Bench, questions: Sequence[str]) -> dict[str, list[Measured]]:
    answers: dict[str, list[Measured]] = {way: [] for way in _WAYS}
    for number, question in enumerate(questions):
        messages = [{"role": "user", "content": question}]
        if number == 0:
            for way in _WAYS:
                bench.answer(way, messages)
        for turn in range(len(_WAYS)):
            way = _WAYS[(number + turn) % len(_WAYS)]
            answers[way].append(bench.answer(way, messages))
        sys.stderr.write(f"\r{number + 1} of {len(questions)}")
        sys.stderr.flush()
    sys.stderr.write("\n")
    return answers


def main(arguments: Sequence[str]) -> None:
    """Measure, and write one JSON object to stdout."""
    parser = argparse.ArgumentParser(prog="racer_local.research.bench_server")
    parser.add_argument("--model", default=_MODEL)
    parser.add_argument("--rounds", type=int, default=2, help="prompts of each category")
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--draft", default="auto", help="draft mode")
    parser.add_argument("--client", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.client:
        _ask_from_stdin(options.client)
        return
    from racer_local.bench.suites import CATEGORIES, choose
    from racer_local.hardware.machine import describe_machine
    from racer_local.models.store import resolve_model

    # Longer ones leave no room in the context for an answer.
    questions = [p.turns[0] for p in choose(CATEGORIES, options.rounds) if len(p.turns[0]) < 3000]
    path = resolve_model(options.model)
    with (
        _served(path, DraftConfig(mode=options.draft)) as (session, url),
        _client_of(url) as client,
    ):
        answers = _run(_Bench(session, client, options.max_tokens), questions)
    figures = summary(answers)
    n_same = sum(
        a.n_tokens == b.n_tokens and b.text == c.text
        for a, b, c in zip(*(answers[way] for way in _WAYS), strict=True)
    )
    sys.stderr.write(f"{'':8}{'first ms':>10}{'more ms':>9}{'at most':>9}{'tok/s':>8}{'':>9}\n")
    for way, row in figures.items():
        sys.stderr.write(
            f"{way:8}{row['first_ms']:>10.1f}{row['extra_ms']:>9.2f}{row['most_extra_ms']:>9.2f}"
            f"{row['tokens_per_s']:>8.1f}{row['relative']:>8.3f}x\n"
        )
    sys.stderr.write(f"{n_same} of {len(questions)} answers were the same three times\n")
    told = {"machine": describe_machine(), "model": path.name, "draft": options.draft}
    sys.stdout.write(json.dumps({**told, "n_answers": len(questions), "ways": figures}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
