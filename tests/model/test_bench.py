"""The benchmark, a recording and a warm-up of a real model, through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from racer_local.bench.trace import read_trace
from racer_local.drafting.auto.row_memory_store import load_row_memory


def racer_local(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "racer_local", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_a_benchmark_measures_modes_and_peers_on_the_same_prompts(
    smol_path: Path, tmp_path: Path
) -> None:
    done = racer_local(
        *("bench", "--model", str(smol_path), "--suites", "qa", "--per-category", "1"),
        *(
            "-n",
            "8",
            "--modes",
            "racer:4,auto+exact",
            "--peers",
            "--ctx",
            "512",
            "--json",
            "out.json",
        ),
        cwd=tmp_path,
    )
    result = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert {"machine", "model", "settings", "modes"} <= set(result)
    assert result["model"]["file_type"] == "Q4_1"
    assert result["settings"]["is_complete"]
    assert result["settings"]["dropped"] == {}
    assert all(len(runs) == 2 for runs in result["settings"]["startup_s"].values())
    assert "start-up: racer-local generate --help" in done.stdout
    modes = result["modes"]
    assert list(modes) == [
        *("off", "off+exact", "racer:4", "auto+exact"),
        *("llama-cpp-python", "llama-cpp-python:pld10", "llama-cpp-python:pld2"),
    ]
    for name, figures in modes.items():
        assert list(figures) == ["qa", "all"]
        assert figures["all"]["tokens"] == 7
        assert figures["all"]["tokens_per_s"] > 0
        assert figures["all"]["speedup"] > 0
        assert figures["all"]["mean_accepted_tokens"] >= 1
        assert figures["all"]["nodes_per_step"] >= 1
        assert name in done.stdout
    assert modes["off"]["all"]["speedup"] == modes["off"]["all"]["same_as_plain"] == 1
    # Nothing but the single-token steps of both, so even the rounding is the same.
    assert modes["llama-cpp-python"]["all"]["same_as_plain"] == 1
    assert modes["racer:4"]["all"]["nodes_per_step"] > 1
    assert modes["auto+exact"]["all"]["same_as_plain"] == 1
    assert modes["auto+exact"]["all"]["exact_speedup"] > 0
    assert result["settings"]["exact_kv_type"] == "q8_0"
    assert result["settings"]["exact_nodes"] >= 15
    assert "speed over" in done.stdout


def test_exact_modes_are_refused_where_every_mode_is_exact(smol_path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "racer_local", "bench", "--exact", "--modes", "auto+exact"]
    done = subprocess.run(
        [*command, "--model", str(smol_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "with --exact every mode is exact" in done.stderr


def test_a_recording_can_be_replayed(smol_path: Path, tmp_path: Path) -> None:
    racer_local(
        *("bench", "--model", str(smol_path), "--suites", "mt_bench,code_edit", "-n", "16"),
        *("--per-category", "1", "--record", "trace.npz"),
        cwd=tmp_path,
    )
    trace = read_trace(tmp_path / "trace.npz")
    records = list(trace)
    assert [record.category for record in records] == ["mt_bench", "mt_bench", "code_edit"]
    for record in records:
        answer = slice(record.n_prompt, len(record.tokens))
        assert 0 < len(record.tokens[answer]) <= 16
        # Greedy: the likeliest token after each place is the one that follows.
        before = slice(record.n_prompt - 1, len(record.tokens) - 1)
        assert (record.topk_ids[before, 0] == record.tokens[answer]).all()
        assert (record.topk_probs[:, 0] > 0).all()
    done = racer_local("replay", "trace.npz", "--draft", "racer", "--json", "-", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert result["all"]["tokens"] == sum(len(r.tokens) - r.n_prompt - 1 for r in records)
    assert result["all"]["mean_accepted_tokens"] > 1


def test_warm_keeps_rows_that_are_found_again(smol_path: Path, tmp_path: Path) -> None:
    racer_local("warm", str(smol_path), "--minutes", "0.001", "-n", "8", cwd=tmp_path)
    memory = load_row_memory(smol_path)
    assert memory is not None
    assert len(memory) > 50
