"""The doctor measures, and says what pays."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "racer_local", "doctor", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        env=os.environ,
    )


def test_it_plots_costs_and_gives_advice(tiny_path) -> None:
    done = doctor("--model", str(tiny_path("llama")))
    assert done.returncode == 0, done.stderr
    for words in ("ggml", "threads", "1.00x", "█", "drafted:", "Advice:"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 200


def test_json_has_the_figures(tiny_path) -> None:
    done = doctor("--model", str(tiny_path("llama")), "--json")
    result = json.loads(done.stdout)
    assert result["step_seconds"]["1"] > 0
    assert result["devices"]
    assert "llama-cpp-python" in result["machine"]["runtime"]


def test_a_model_that_cannot_draft_or_fit_is_no_failure(tiny_path) -> None:
    done = doctor("--model", str(tiny_path("mamba")))
    assert done.returncode == 0, done.stderr
    assert "drafting is off" in done.stdout
    done = doctor("--model", str(tiny_path("llama")), "--ctx", str(1 << 24))
    assert done.returncode == 0, done.stderr
    assert "was not loaded" in done.stdout
    assert "smaller --ctx" in done.stdout
