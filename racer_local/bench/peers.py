"""Other programs in the same benchmark: llama-cpp-python and llama-server. Layer: files.

They get the same model file, token ids, threads, context and flash attention, and keep their
other defaults. Each runs in a child process that idles while others are measured. What a program
keeps from one prompt to the next (``ngram-mod`` of llama-server keeps its table) stays as it is.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from racer_local.bench.child import Child, python_command
from racer_local.bench.contest import BenchAnswer, Contestant, PeerError
from racer_local.speculation.tree import TokenId

__all__ = [
    "LOOKUP_TOKENS",
    "SPEC_TYPES",
    "LlamaServer",
    "PeerSettings",
    "PythonPeer",
    "open_python_peers",
    "open_servers",
]

# The draftless ones among llama-server's kinds of speculation.
SPEC_TYPES = ("none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
# Tokens that llama-cpp-python's prompt lookup drafts: its own default, and what it advises for
# machines without a GPU.
LOOKUP_TOKENS = (10, 2)
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """What all programs are opened with.

    Attributes:
        path: the model file.
        n_ctx: context size in tokens.
        n_threads: threads.
        n_gpu_layers: layers on the GPU; -1 is all.
        kv_type: element type of the KV cache, by its ggml name.
    """

    path: str
    n_ctx: int
    n_threads: int
    n_gpu_layers: int
    kv_type: str


class PythonPeer:
    """``llama_cpp.Llama``, plain or with its prompt lookup."""

    def __init__(self, name: str, child: Child, lookup: int) -> None:
        """Ask a running child, which several contestants may share."""
        self._name = name
        self._child = child
        self._lookup = lookup

    @property
    def name(self) -> str:
        """What it is called in the report."""
        return self._name

    def answer(self, prompt: Sequence[TokenId], max_tokens: int) -> BenchAnswer:
        """Answer from an empty cache, greedily.

        Raises:
            PeerError: the child has died or failed.
        """
        asked = {"prompt": list(prompt), "max_tokens": max_tokens, "lookup": self._lookup}
        try:
            self._child.requests.write(json.dumps(asked).encode("ascii") + b"\n")
            self._child.requests.flush()
        except OSError:
            raise self._child.failure("it takes no requests") from None
        return BenchAnswer(**_reply(self._child))


def _reply(child: Child) -> dict[str, Any]:
    line = child.replies.readline()
    try:
        reply: dict[str, Any] = json.loads(line)
    except ValueError:
        raise child.failure("it gave no answer") from None
    if "error" in reply:
        raise PeerError(f"{child.name}: {reply['error']}")
    return reply


@contextlib.contextmanager
def open_python_peers(settings: PeerSettings) -> Iterator[list[Contestant]]:
    """Start llama-cpp-python in a child process; yields it plain and with prompt lookup.

    Raises:
        PeerError: it cannot open the model.
    """
    command = python_command("racer_local.backend.peer", json.dumps(asdict(settings)))
    with Child(command, name="llama-cpp-python", with_pipes=True) as child:
        _reply(child)
        peers: list[Contestant] = [PythonPeer("llama-cpp-python", child, 0)]
        peers += [PythonPeer(f"llama-cpp-python:pld{n}", child, n) for n in LOOKUP_TOKENS]
        yield peers


class LlamaServer:
    """A llama-server process with one kind of draftless speculation."""

    def __init__(self, program: str, settings: PeerSettings, spec_type: str) -> None:
        """Start it; it loads the model in the background.

        Raises:
            PeerError: it cannot be started.
        """
        self._name = "llama-server" if spec_type == "none" else f"llama-server:{spec_type}"
        self._port = _free_port()
        command = server_command(program, settings, spec_type, self._port)
        self._child = Child(command, name=self._name, with_pipes=False)

    @property
    def name(self) -> str:
        """What it is called in the report."""
        return self._name

    def wait(self) -> None:
        """Return when the model is loaded, however long that takes.

        Raises:
            PeerError: the server has ended instead.
        """
        while True:
            if not self._child.is_running:
                raise self._child.failure("it did not start")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self._request("GET", "/health", None)[0] == http.HTTPStatus.OK:
                    return
            time.sleep(_POLL_S)

    def answer(self, prompt: Sequence[TokenId], max_tokens: int) -> BenchAnswer:
        """Answer from an empty cache, greedily.

        Raises:
            PeerError: the server has died or refuses.
        """
        asked = {
            "prompt": list(prompt),
            "n_predict": max_tokens,
            "temperature": 0,
            # The first sampler of its chain then leaves one token for the others to look at.
            "top_k": 1,
            "cache_prompt": False,
            "return_tokens": True,
        }
        try:
            status, content = self._request("POST", "/completion", json.dumps(asked))
        except (OSError, http.client.HTTPException):
            raise self._child.failure("it does not answer") from None
        if status != http.HTTPStatus.OK:
            shown = content.decode("utf-8", "replace")[:200]
            raise PeerError(f"{self._name} answered with status {status}: {shown}")
        return parse_completion(json.loads(content))

    def _request(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        # No timeout: a slow machine may take minutes for one answer. No proxy either.
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def close(self) -> None:
        """End the server; a second call does nothing."""
        self._child.close()


def server_command(program: str, settings: PeerSettings, spec_type: str, port: int) -> list[str]:
    """Return the command line of a server with one slot and one kind of speculation."""
    n_threads = str(settings.n_threads)
    command = [program, "--model", settings.path, "--ctx-size", str(settings.n_ctx)]
    command += ["--threads", n_threads, "--threads-batch", n_threads, "--flash-attn", "on"]
    command += ["--parallel", "1", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--n-gpu-layers", str(settings.n_gpu_layers if settings.n_gpu_layers >= 0 else 999)]
    command += ["--cache-type-k", settings.kv_type, "--cache-type-v", settings.kv_type]
    return [*command, "--spec-type", spec_type]


def parse_completion(reply: dict[str, Any]) -> BenchAnswer:
    """Read llama-server's reply: its own clock, from the first token to the last.

    Raises:
        PeerError: it is not of the expected form.
    """
    try:
        timings, tokens = reply["timings"], [int(token) for token in reply["tokens"]]
        n_decoded = max(0, int(timings["predicted_n"]) - 1)
        n_accepted = int(timings.get("draft_n_accepted", 0))
        # The token that ended the answer was generated, but is none of its tokens.
        if reply.get("stop_type") == "eos" and len(tokens) > n_decoded:
            del tokens[n_decoded:]
        return BenchAnswer(
            tokens=tokens,
            n_decoded=n_decoded,
            n_steps=max(n_decoded - n_accepted, 0),
            n_drafted=int(timings.get("draft_n", 0)),
            prefill_s=float(timings["prompt_ms"]) / 1000,
            decode_s=float(timings["predicted_ms"]) / 1000,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PeerError(f"llama-server's reply has no usable timings: {error!r}") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def open_servers(
    program: str, settings: PeerSettings, spec_types: Sequence[str] = SPEC_TYPES
) -> Iterator[list[Contestant]]:
    """Start one server per kind of speculation; all are up when this yields them.

    Raises:
        PeerError: one of them cannot be started.
    """
    with contextlib.ExitStack() as stack:
        servers = []
        for spec_type in spec_types:
            server = LlamaServer(program, settings, spec_type)
            stack.callback(server.close)
            # One after the other: all of them reading one disk at once is slower.
            server.wait()
            servers.append(server)
        yield list(servers)
