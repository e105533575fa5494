"""What goes wrong in a native layer must neither spread nor go unnoticed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest
from adversaries import RightPathLast
from fakes import TreeDrafter
from inputs import GREEDY, STEP, generate, open_session
from reference import assert_same_as_tiny, plain_llama

from racer_local.backend.model import LlamaModel
from racer_local.backend.target import LlamaTarget
from racer_local.config import DraftConfig, GenerationConfig, ModelConfig, SamplingConfig
from racer_local.decoding.session import Session
from racer_local.errors import ClosedError, DecodeError, ModelLoadError
from racer_local.speculation.tree import DraftTree, Source

DRAFT = DraftConfig(mode="racer", budget=16)


@pytest.mark.parametrize("code", [1, -1])
def test_one_failed_decode_does_not_poison_the_next_answer(
    smol: Session, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    prompt = smol.prompt_tokens(STEP)
    expected, _ = generate(smol, prompt, 32, DRAFT)
    smol.engine.forget()
    real = llama_cpp.llama_decode
    # The prompt, then the first tree.
    calls = iter([None, code])

    def decode(ctx: object, batch: object) -> int:
        forced = next(calls, None)
        return real(ctx, batch) if forced is None else forced

    monkeypatch.setattr(llama_cpp, "llama_decode", decode)
    if code == 1:
        assert generate(smol, prompt, 32)[0] == expected
    else:
        with pytest.raises(DecodeError, match="code -1"):
            generate(smol, prompt, 32)
    monkeypatch.undo()
    smol.engine.forget()
    assert generate(smol, prompt, 32)[0] == expected
    assert len({last for _, last in smol.target.positions()}) == 1


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_a_stream_left_early_leaves_a_clean_cache(smol: Session, n: int) -> None:
    prompt = smol.prompt_tokens(STEP)
    smol.engine.use(DraftConfig(mode="racer", budget=32))
    generation = smol.engine.generate(prompt, GREEDY, GenerationConfig(max_tokens=32))
    started = [next(generation).token for _ in range(n)]
    generation.close()
    kept = smol.target.tokens
    assert kept == (prompt + started)[: len(kept)]
    assert set(smol.target.positions()) == {(0, len(kept) - 1)}
    smol.engine.forget()
    expected, _ = generate(smol, prompt, 32)
    assert expected[:n] == started


def test_an_exception_in_the_middle_of_a_commit_loses_the_cache_and_not_the_model(
    smol: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = smol.prompt_tokens(STEP)
    expected, _ = generate(smol, prompt, 32, DRAFT)
    smol.engine.forget()
    calls = 0
    real = llama_cpp.llama_memory_seq_rm

    def remove(*arguments: object) -> bool:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return bool(real(*arguments))

    monkeypatch.setattr(llama_cpp, "llama_memory_seq_rm", remove)
    with pytest.raises(KeyboardInterrupt):
        generate(smol, prompt, 32)
    monkeypatch.undo()
    assert len(set(smol.target.positions())) == 1
    smol.engine.forget()
    assert generate(smol, prompt, 32)[0] == expected


def test_cancel_from_another_thread_during_a_long_prompt(smol: Session) -> None:
    prompt = smol.prompt_tokens("All work and no play makes Jack a dull boy. " * 120)
    told: list[tuple[int, int]] = []

    def cancel(n_read: int, n_all: int) -> None:
        told.append((n_read, n_all))
        stopper = threading.Thread(target=smol.cancel)
        stopper.start()
        stopper.join()

    limits = GenerationConfig(max_tokens=400)
    stream = smol.stream(prompt, GREEDY, limits, on_prefill=cancel)
    assert [event.token for event in stream] == [None]
    assert stream.finish_reason == "cancelled"
    # Once, in the middle.
    [(n_read, n_all)] = told
    assert n_read < n_all == len(prompt)
    expected, _ = generate(smol, smol.prompt_tokens(STEP), 8, DRAFT)
    assert len(expected) == 8


@pytest.mark.parametrize("question", ["recurrent", "hybrid"])
def test_a_model_that_says_it_cannot_roll_back_decodes_plainly_with_one_notice(
    smol_path: Path, smol: Session, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    expected, _ = generate(smol, smol.prompt_tokens(STEP), 16, DraftConfig(mode="off"))
    monkeypatch.setattr(llama_cpp, f"llama_model_is_{question}", lambda model: True)
    with open_session(ModelConfig(path=smol_path, n_ctx=512), DRAFT) as model:
        assert len(model.notices) == 1
        generation = model.engine.generate(
            model.prompt_tokens(STEP), GREEDY, GenerationConfig(max_tokens=16)
        )
        assert [event.token for event in generation] == expected
        assert generation.stats.n_drafted == 0


def test_a_cache_that_refuses_to_roll_back_is_found_out_at_load(
    smol_path: Path, smol: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = generate(smol, smol.prompt_tokens(STEP), 16, DraftConfig(mode="off"))
    monkeypatch.setattr(llama_cpp, "llama_memory_seq_rm", lambda *arguments: False)
    with open_session(ModelConfig(path=smol_path, n_ctx=512), DRAFT) as model:
        assert len(model.notices) == 1
        prompt = model.prompt_tokens(STEP)
        tokens, _ = generate(model, prompt, 16)
        assert tokens == expected
        # The next turn goes on from what is cached; another text starts over.
        longer = [*prompt, *tokens, *prompt]
        assert len(generate(model, longer, 4)[0]) == 4
        assert generate(model, prompt, 16)[0] == expected


def test_255_branches_fit_and_300_are_cut(smol_path: Path) -> None:
    def fan(n_leaves: int, text: list[int]) -> DraftTree:
        tree = DraftTree(text[-1])
        for token in range(1000, 1000 + n_leaves):
            tree.add(0, token, Source.LOGITS)
        return tree

    config = ModelConfig(path=smol_path, n_ctx=1024, max_nodes=255, max_leaves=255)
    with open_session(config, DraftConfig(mode="off")) as model:
        prompt = model.prompt_tokens(STEP)
        expected, _ = generate(model, prompt, 3, DraftConfig(mode="off"))
        for n_leaves in (1, 32, 255, 300):
            model.engine.use(TreeDrafter(lambda text, _, n=n_leaves: fan(n, text)), 255)
            model.engine.forget()
            limits = GenerationConfig(max_tokens=400)
            generation = model.engine.generate(prompt, GREEDY, limits)
            tokens = [next(generation).token for _ in range(3)]
            generation.close()
            assert tokens == expected
            assert generation.stats.n_drafted <= 2 * min(n_leaves, 255)


@pytest.mark.parametrize("kind", ["mamba", "jamba", "lfm2"])
def test_recurrent_models_write_the_right_text_without_drafts(
    tiny_path: Callable[[str], Path], kind: str
) -> None:
    path = tiny_path(kind)
    plain = llama_cpp.Llama(str(path), n_ctx=256, verbose=False, n_threads=1, n_threads_batch=1)
    config = ModelConfig(path=path, n_ctx=256, n_threads=1, kv_type="f16")
    with open_session(config, DRAFT) as model:
        assert len(model.notices) == 1
        for text in ("hello world hello world", "hello world hello there"):
            prompt = model.prompt_tokens(text)
            expected = []
            for token in plain.generate(prompt, temp=0.0):
                expected.append(token)
                if len(expected) == 12:
                    break
            generation = model.engine.generate(
                prompt, GREEDY, GenerationConfig(max_tokens=12, ignore_eos=True)
            )
            assert [event.token for event in generation] == expected
            assert generation.stats.n_drafted == 0
    plain.close()


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen2vl"])
@pytest.mark.parametrize("mode", ["racer", "pld"])
def test_tiny_models_of_other_kinds_give_the_same_tokens_with_drafts(
    tiny_path: Callable[[str], Path], kind: str, mode: str
) -> None:
    config = ModelConfig(path=tiny_path(kind), n_ctx=256, n_threads=1)
    limits = GenerationConfig(max_tokens=80, ignore_eos=True)
    with (
        open_session(config, DraftConfig(mode="off")) as model,
        plain_llama(config.path, 256) as plain,
    ):
        prompt = model.prompt_tokens("the cat and the dog and the cat and the")
        # Three tokens only, chosen among by the whole context: whatever is chosen on which
        # processor, such a text repeats itself, and drafts of it are taken.
        few = SamplingConfig(temperature=0, logit_bias={token: 100.0 for token in prompt[-3:]})
        model.engine.use(DraftConfig(mode=mode, budget=16))
        generation = model.engine.generate(prompt, few, limits)
        tokens = [event.token for event in generation]
        assert_same_as_tiny(plain, prompt, tokens, few)
        assert generation.stats.n_accepted > 0
        # And any token; with a drafter that knows the answer.
        free = plain.greedy(prompt, 80)
        model.engine.use(RightPathLast(prompt, free))
        generation = model.engine.generate(prompt, GREEDY, limits)
        assert_same_as_tiny(plain, prompt, [event.token for event in generation])
        assert generation.stats.n_accepted > 0
        assert not generation.stats.notices


def test_a_text_whose_cells_somebody_else_changed_is_dropped(
    tiny_path: Callable[[str], Path],
) -> None:
    config = ModelConfig(path=tiny_path("llama"), n_ctx=64, n_threads=1)
    target = LlamaTarget(LlamaModel(config), config)
    target.resync()
    target.prefill([1, 2, 3, 4], [])
    target.resync()
    assert target.tokens == [1, 2, 3, 4]
    llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(target._ctx), -1, 2, -1)
    target.resync()
    assert target.tokens == []
    assert set(target.positions()) == {(-1, -1)}


def test_a_closed_model_says_so(smol_path: Path) -> None:
    model = open_session(ModelConfig(path=smol_path, n_ctx=256))
    prompt = model.prompt_tokens(STEP)
    model.close()
    model.close()
    with pytest.raises(ClosedError):
        generate(model, prompt, 4)
    with pytest.raises(ClosedError):
        model.prompt_tokens("x")


def test_a_file_that_only_looks_like_a_model_is_refused_by_llama_cpp_with_its_reason(
    tmp_path: Path, tiny_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_path("llama").read_bytes()[:-64])
    # The header check would find this out; llama.cpp's own refusal must be told as well.
    monkeypatch.setattr("racer_local.backend.model.inspect_gguf", lambda path: None)
    monkeypatch.setattr("racer_local.backend.model.require_generative", lambda info: None)
    with pytest.raises(ModelLoadError, match="could not load"):
        open_session(ModelConfig(path=path, n_ctx=256))


SCRIPTS = {
    "left open at exit": (
        "model = Session(config)\nlist(model.stream(model.prompt_tokens('a b a b'), GREEDY, LIMIT))"
    ),
    "left in the middle of a stream": (
        "model = Session(config)\n"
        "stream = model.stream(model.prompt_tokens('a b'), GREEDY, LIMIT)\n"
        "next(stream)"
    ),
    "closed in the wrong order": (
        "model = Session(config); model.model.close(); model.target.close()"
    ),
    "missing file": (
        "try: Session(ModelConfig(path=Path('missing.gguf')))\n"
        "except RacerError as error: print(error)"
    ),
    "two models in two threads": (
        "import threading\n"
        "def work():\n"
        "    with Session(config) as model:\n"
        "        list(model.stream(model.prompt_tokens('a b a b'), GREEDY, LIMIT))\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]"
    ),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_process_ends_cleanly_and_quietly(script: str, smol_path: Path) -> None:
    header = (
        "from pathlib import Path\n"
        "from racer_local.config import GenerationConfig, ModelConfig, SamplingConfig\n"
        "from racer_local.errors import RacerError\n"
        "from racer_local.decoding.session import Session\n"
        f"config = ModelConfig(path=Path({str(smol_path)!r}), n_ctx=256, n_threads=1)\n"
        "GREEDY = SamplingConfig(temperature=0)\nLIMIT = GenerationConfig(max_tokens=4)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", header + script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
