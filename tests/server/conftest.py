"""The real server in a process of its own, and clients for it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
# No wait is a test of speed: a busy machine only makes them longer.
PATIENCE_S = 300


class Served:
    """A server process.

    Attributes:
        url: where it listens.
        lines: what it wrote to stderr so far.
    """

    def __init__(self, home: Path, costs: Path, *arguments: str, **environment: str) -> None:
        # What steps cost is known here, too: see ``known_costs``.
        self._costs = costs
        names = ("PATH", "SYSTEMROOT", "PYTHONPATH", "LD_LIBRARY_PATH", "OMP_WAIT_POLICY")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        kept.update(HOME=str(home), USERPROFILE=str(home), LOCALAPPDATA=str(home))
        kept.update(XDG_CACHE_HOME=str(home / ".cache"))
        self._own_costs = home / costs.relative_to(costs.parents[2])
        shutil.copytree(costs, self._own_costs)
        self.process = subprocess.Popen(
            [sys.executable, "-X", "utf8", "-m", "racer_local", "serve", "--port", "0", *arguments],
            cwd=ROOT,
            env={**kept, **environment},
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.lines: list[str] = []
        self._has_url = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            found = re.search(r"http://\S+?(?=/v1)", line)
            if found:
                self.url = found[0]
                self._has_url.set()
        self._has_url.set()

    def wait_for_address(self) -> Served:
        assert self._has_url.wait(PATIENCE_S)
        assert self.url, self.lines
        return self

    def wait(self) -> Served:
        self.wait_for_address()
        ends = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            if httpx.get(f"{self.url}/health", timeout=PATIENCE_S).status_code == 200:
                for path in self._own_costs.glob("*.json"):
                    shutil.copy2(path, self._costs)
                return self
            assert self.process.poll() is None, self.lines
            time.sleep(0.05)
        raise AssertionError(self.lines)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def client(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, **options)  # type: ignore[arg-type]

    def metrics(self) -> dict[str, float]:
        """Read the counters: a sample's name with its labels, and its value."""
        from prometheus_client.parser import text_string_to_metric_families

        text = httpx.get(f"{self.url}/metrics", timeout=PATIENCE_S).text
        return {
            f"{sample.name}{sorted(sample.labels.values())}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def wait_until_idle(self) -> None:
        wait_for(lambda: self.metrics()["racer_running[]"] == 0)

    @property
    def n_cancelled(self) -> float:
        """Requests whose client went before their end."""
        return self.metrics()["racer_cancelled_total[]"]


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def start_server(
    session_costs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Served]]:
    """Return a function that starts a server; all end with the tests."""
    servers: list[Served] = []

    def start(*arguments: str, **environment: str) -> Served:
        home = tmp_path_factory.mktemp("server")
        servers.append(Served(home, session_costs, *arguments, **environment))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


@pytest.fixture(scope="session")
def served(start_server: Callable[..., Served], smol_path: Path) -> Served:
    """A server of the default model with a context of 1,024 tokens."""
    return start_server("--model", str(smol_path), "--ctx", "1024").wait()


@pytest.fixture(scope="session")
def served_tiny(start_server: Callable[..., Served], tiny_path: Callable[[str], Path]) -> Served:
    """A server of the model that goes round, with drafts that do not go by the clock."""
    draft = ("--draft", "racer", "--budget", "8")
    return start_server("--model", str(tiny_path("cycle")), "--ctx", "1024", *draft).wait()


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client
