"""Models of other kinds under ``RacerLlama``: sliding windows, no template, no way back, LoRA."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from inputs import LINE, LINES60
from reference import PlainLlama, assert_same_as_plain

from racer_local import RacerLlama
from racer_local.errors import UnsupportedModelError

# Above what upstream itself takes; in MiB. A float for every token of the prompt and of the
# vocabulary would be 800.
ALLOWED_MIB = 300


def greedy(llama: RacerLlama, text: str, n: int) -> list[int]:
    events = llama.stream_events(text, max_tokens=n, temperature=0)
    return [event.token for event in events if event.token is not None]


@pytest.mark.parametrize("options", [{}, {"swa_full": False}])
def test_a_shorter_prompt_after_a_long_one_on_a_sliding_window(
    gemma_path: Path, gemma_plain: PlainLlama, options: dict[str, Any]
) -> None:
    llama = RacerLlama(str(gemma_path), n_ctx=2048, draft="racer", budget=8, **options)
    try:
        assert bool(options) == any("swa_full" in notice for notice in llama.notices)
        long = greedy(llama, LINES60, 32)
        assert " jumps over the lazy dog." in llama.detokenize(long).decode()
        short_text = "".join(LINE.format(i) for i in range(1, 6)) + "The quick brown fox number"
        short = greedy(llama, short_text, 24)
        prompt = llama.tokenize(short_text.encode())
        assert_same_as_plain(gemma_plain, prompt, short)
    finally:
        llama.close()


@pytest.mark.slow
@pytest.mark.parametrize("budget", [16, 64])
def test_lines_go_on_beyond_the_window_and_across_it(
    gemma_path: Path, gemma_plain: PlainLlama, budget: int
) -> None:
    llama = RacerLlama(str(gemma_path), n_ctx=2048, draft="racer", budget=budget)
    try:
        long = greedy(llama, LINES60, 96)
        assert_same_as_plain(gemma_plain, llama.tokenize(LINES60.encode()), long)
        text = " jumps over the lazy dog.\n" + "".join(LINE.format(i) for i in range(62, 80))
        assert text.startswith(llama.detokenize(long).decode())
        prompt = llama.tokenize(LINES60.encode())[:480]
        events = llama.stream_events(prompt, max_tokens=64, temperature=0)
        across = [event.token for event in events if event.token is not None]
        assert_same_as_plain(gemma_plain, prompt, across)
    finally:
        llama.close()


def test_a_file_without_a_template_says_so_and_has_one_bos(gemma_path: Path) -> None:
    llama = RacerLlama(str(gemma_path), n_ctx=256, draft="off")
    try:
        assert any("no chat template" in notice for notice in llama.notices)
        llama("Hello", max_tokens=1, temperature=0)
        assert list(llama.input_ids[:2]).count(llama.token_bos()) == 1
        with pytest.warns(RuntimeWarning, match="duplicate"):
            llama("<bos>Hello", max_tokens=1, temperature=0)
    finally:
        llama.close()


@pytest.mark.parametrize("kind", ["mamba", "jamba", "lfm2"])
def test_a_model_that_cannot_go_back_writes_upstreams_text(
    tiny_path: Callable[[str], Path], kind: str
) -> None:
    path = str(tiny_path(kind))
    # The same steps with the same cache: equal to the last bit on any processor.
    f16 = llama_cpp.GGML_TYPE_F16
    same = {"n_threads": 1, "n_threads_batch": 1, "type_k": f16, "type_v": f16}
    plain = llama_cpp.Llama(path, n_ctx=256, verbose=False, flash_attn=True, **same)
    llama = RacerLlama(path, n_ctx=256, draft="racer", budget=8, **same)
    assert len([n for n in llama.notices if "drafting is off" in n]) == 1
    for text in ("hello world hello world", "hello world hello there", "hello world hello world"):
        expected = plain(text, max_tokens=12, temperature=0)["choices"]
        assert llama(text, max_tokens=12, temperature=0)["choices"] == expected
        assert llama.last_stats is not None
        assert llama.last_stats.n_drafted == 0
        assert llama.last_stats.notices
    llama.close()
    plain.close()


def test_an_image_handler_is_refused(smol_path: Path) -> None:
    from llama_cpp.llama_chat_format import Llava15ChatHandler

    handler = Llava15ChatHandler.__new__(Llava15ChatHandler)
    with pytest.raises(UnsupportedModelError, match="images"):
        RacerLlama(str(smol_path), chat_handler=handler)


MEMORY = """
import resource, sys
which, path = sys.argv[1:]
if which == "plain":
    from llama_cpp import Llama
    llama = Llama(path, n_ctx=8192, verbose=False)
else:
    from racer_local import RacerLlama
    llama = RacerLlama(path, n_ctx=8192)
ids = [(7 * i) % 5000 + 100 for i in range(800)]
llama.create_completion(ids, max_tokens=24, temperature=0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is asked for the POSIX way")
def test_no_table_of_context_times_vocabulary(gemma_path: Path) -> None:
    peaks = [
        int(
            subprocess.run(
                [sys.executable, "-c", MEMORY, which, str(gemma_path)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for which in ("plain", "racer")
    ]
    assert peaks[1] < peaks[0] + ALLOWED_MIB
