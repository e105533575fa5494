"""Other programs are started alike, read right, and always ended."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from racer_local.bench.child import Child
from racer_local.bench.contest import PeerError
from racer_local.bench.peers import (
    SPEC_TYPES,
    PeerSettings,
    PythonPeer,
    open_python_peers,
    open_servers,
    parse_completion,
    server_command,
)

SETTINGS = PeerSettings(path="model.gguf", n_ctx=512, n_threads=2, n_gpu_layers=-1, kv_type="q8_0")

SERVER = """
import http.server, json, sys
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if args["--spec-type"] == "broken":
    sys.exit("no such kind")
class Handler(http.server.BaseHTTPRequestHandler):
    n_health = 0
    def log_message(self, *args):
        pass
    def reply(self, status, message):
        body = json.dumps(message).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        Handler.n_health += 1
        self.reply(200 if Handler.n_health > 2 else 503, {})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if args["--spec-type"] == "dies":
            raise SystemExit
        if args["--spec-type"] == "refuses":
            return self.reply(400, {"error": "too long"})
        tokens = [7] * asked["n_predict"]
        timings = {"predicted_n": len(tokens), "predicted_ms": 500.0, "prompt_ms": 250.0}
        timings["draft_n"] = len(asked["prompt"])
        timings["draft_n_accepted"] = 2
        self.reply(200, {"tokens": tokens, "timings": timings, "stop_type": "limit"})
class Server(http.server.HTTPServer):
    def handle_error(self, request, address):
        import os; os._exit(3)
Server(("127.0.0.1", int(args["--port"])), Handler).serve_forever()
"""

needs_scripts = pytest.mark.skipif(os.name == "nt", reason="needs scripts that can be executed")


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "llama-server"
    path.write_text(f"#!{sys.executable}\n{SERVER}")
    path.chmod(0o755)
    return str(path)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@needs_scripts
def test_one_server_for_each_kind_answers_and_all_are_ended(program: str) -> None:
    with open_servers(program, SETTINGS) as servers:
        pids = [server._child._process.pid for server in servers]  # type: ignore[attr-defined]
        assert [s.name for s in servers] == [
            "llama-server",
            *(f"llama-server:{kind}" for kind in SPEC_TYPES[1:]),
        ]
        answer = servers[1].answer([1, 2, 3, 4], 9)
        assert all(is_alive(pid) for pid in pids)
    assert answer.tokens == [7] * 9
    # The first token is the prompt's; of eight more two were drafts, so six steps were needed.
    assert (answer.n_decoded, answer.n_steps, answer.n_drafted) == (8, 6, 4)
    assert (answer.prefill_s, answer.decode_s) == (0.25, 0.5)
    assert not any(is_alive(pid) for pid in pids)


@needs_scripts
def test_servers_are_ended_when_one_does_not_start(program: str) -> None:
    with (
        pytest.raises(PeerError, match=r"broken: it did not start.*no such kind"),
        open_servers(program, SETTINGS, ["none", "broken"]),
    ):
        raise AssertionError("must not get here")


@needs_scripts
@pytest.mark.parametrize(("kind", "message"), [("dies", "not answer"), ("refuses", "too long")])
def test_a_server_that_fails_says_so(program: str, kind: str, message: str) -> None:
    with (
        open_servers(program, SETTINGS, [kind]) as (server,),
        pytest.raises(PeerError, match=message),
    ):
        server.answer([1], 4)


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(PeerError, match="cannot start"), open_servers("/no/such", SETTINGS):
        pass


def test_all_servers_get_the_same_settings() -> None:
    command = server_command("srv", SETTINGS, "ngram-mod", 8123)
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert command[0] == "srv"
    assert options["--threads"] == options["--threads-batch"] == "2"
    assert options["--flash-attn"] == "on"
    assert options["--ctx-size"] == "512"
    assert options["--parallel"] == "1"
    assert options["--host"] == "127.0.0.1"
    assert options["--spec-type"] == "ngram-mod"
    on_cpu = PeerSettings(path="m", n_ctx=1, n_threads=1, n_gpu_layers=0, kv_type="f16")
    command = server_command("srv", on_cpu, "none", 1)
    assert command[command.index("--n-gpu-layers") + 1] == "0"
    assert command[command.index("--cache-type-k") + 1] == "f16"
    assert command[command.index("--cache-type-v") + 1] == "f16"


def test_the_end_token_is_decoded_but_is_no_part_of_the_answer() -> None:
    timings = {"predicted_n": 4, "predicted_ms": 30.0, "prompt_ms": 10.0}
    for tokens in ([5, 6, 7, 2], [5, 6, 7]):
        answer = parse_completion({"tokens": tokens, "timings": timings, "stop_type": "eos"})
        assert answer.tokens == [5, 6, 7]
        assert answer.n_decoded == answer.n_steps == 3


@pytest.mark.parametrize(
    "reply", [{}, {"tokens": [1]}, {"tokens": [1], "timings": {}}, {"tokens": None, "timings": {}}]
)
def test_a_foreign_reply_is_refused(reply: dict[str, Any]) -> None:
    with pytest.raises(PeerError, match="timings"):
        parse_completion(reply)


# --- llama-cpp-python ------------------------------------------------------------------------


def python_child(body: str) -> Child:
    return Child([sys.executable, "-c", textwrap.dedent(body)], name="peer", with_pipes=True)


def test_requests_and_replies_are_lines_of_json() -> None:
    body = """
        import json, sys
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps({
                "tokens": asked["prompt"][: asked["max_tokens"]], "n_decoded": asked["lookup"],
                "n_steps": 1, "n_drafted": 2, "prefill_s": 0.5, "decode_s": 1.5,
            }), flush=True)
    """
    with python_child(body) as child:
        answer = PythonPeer("a", child, 10).answer([4, 5, 6], 2)
        again = PythonPeer("b", child, 2).answer([4, 5, 6], 3)
    assert (answer.tokens, answer.n_decoded, answer.decode_s) == ([4, 5], 10, 1.5)
    assert (again.tokens, again.n_decoded) == ([4, 5, 6], 2)


def test_a_child_that_dies_leaves_its_last_words() -> None:
    with python_child("import sys; sys.exit('out of memory')") as child:
        child._process.wait()
        with pytest.raises(PeerError, match=r"ended with code 1.*out of memory"):
            PythonPeer("a", child, 0).answer([1], 2)


def test_an_error_of_the_child_is_told() -> None:
    body = """print(input() and '{"error": "no such model"}')"""
    with python_child(body) as child, pytest.raises(PeerError, match="peer: no such model"):
        PythonPeer("a", child, 0).answer([1], 2)


def test_a_model_that_cannot_be_opened_is_told_before_the_benchmark(tmp_path: Path) -> None:
    missing = PeerSettings(
        path=str(tmp_path / "no.gguf"), n_ctx=64, n_threads=1, n_gpu_layers=0, kv_type="f16"
    )
    with pytest.raises(PeerError, match="llama-cpp-python"), open_python_peers(missing):
        pass


def test_children_do_not_wait_actively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with python_child("import json, os; print(json.dumps(dict(os.environ)))") as child:
        seen = json.loads(child.replies.readline())
    assert "OMP_WAIT_POLICY" not in seen
    assert seen["PATH"] == os.environ["PATH"]


@pytest.mark.skipif(os.name == "nt", reason="signals cannot be ignored there")
def test_a_child_that_ignores_the_kind_way_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("racer_local.bench.child._PATIENCE_S", 0.2)
    body = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("{}", flush=True)
        while True:
            time.sleep(1)
    """
    child = python_child(body)
    child.replies.readline()
    started = time.monotonic()
    child.close()
    child.close()
    assert not child.is_running
    assert time.monotonic() >= started + 0.2
