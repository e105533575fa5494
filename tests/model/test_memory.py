"""Memory neither leaks nor grows with context times vocabulary."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MEASURE = """
import gc, json, sys
from pathlib import Path
import psutil
from racer_local.config import *
from racer_local.decoding.session import Session

process = psutil.Process()
GREEDY = SamplingConfig(temperature=0)

def megabytes():
    gc.collect()
    return process.memory_info().rss / 1e6

def run(model, prompt, n):
    stream = model.stream(prompt, GREEDY, GenerationConfig(max_tokens=n))
    list(stream)
    return stream
"""

CYCLES = """
config = ModelConfig(path=Path(sys.argv[1]), n_ctx=256, max_nodes=8, max_leaves=8)
sizes = []
for _ in range(51):
    with Session(config, DraftConfig(mode="racer", budget=8)) as model:
        run(model, model.prompt_tokens("one two one two one"), 4)
    del model
    sizes.append(megabytes())
print(json.dumps(sizes))
"""

LARGE_CONTEXT = """
config = ModelConfig(path=Path(sys.argv[1]), n_ctx=8192)
with Session(config, DraftConfig(mode="racer")) as model:
    before = megabytes()
    text = "".join(f"The quick brown fox number {i} jumps.\\n" for i in range(300))
    run(model, model.prompt_tokens(text)[:800], 32)
    peak = megabytes()
print(json.dumps([before, peak]))
"""

PLAIN = """
import llama_cpp
llama = llama_cpp.Llama(sys.argv[1], n_ctx=8192, flash_attn=True, verbose=False)
text = "".join(f"The quick brown fox number {i} jumps.\\n" for i in range(300))
llama.create_completion(llama.tokenize(text.encode())[:800], max_tokens=32, temperature=0)
print(json.dumps([0, megabytes()]))
"""


def measure(script: str, path: Path) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE + script, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sizes: list[float] = json.loads(done.stdout.splitlines()[-1])
    return sizes


def test_opening_and_closing_leaks_nothing(smol_path: Path) -> None:
    sizes = measure(CYCLES, smol_path)
    assert sizes[-1] - sizes[1] < 20, sizes


def test_a_large_vocabulary_and_context_need_no_score_table(gemma_path: Path) -> None:
    _, plain = measure(PLAIN, gemma_path)
    _, ours = measure(LARGE_CONTEXT, gemma_path)
    # A float for every position that was read and every token would be 800 MB here.
    assert ours - plain < 300, (ours, plain)
