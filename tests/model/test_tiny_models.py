"""Each tiny model loads and decodes in the installed llama.cpp, and is what it claims to be."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from llama_cpp import _ggml
from tiny_models import GENERATIVE, TINY_WRITERS, write_llama

from racer_local.gguf.header import inspect_gguf
from racer_local.gguf.kinds import require_generative
from racer_local.gguf.reader import GGML_TYPES
from racer_local.hardware.native_check import extra_buffers_are_safe

TEXT = "Hello, the token model! 你好 🤖\n"
N_CTX = 256


@contextmanager
def opened(path: Path) -> Iterator[ctypes.c_void_p]:
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = extra_buffers_are_safe()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model
    try:
        yield model
    finally:
        llama_cpp.llama_model_free(model)


@contextmanager
def context_of(model: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = N_CTX
    params.n_threads = params.n_threads_batch = 1
    params.swa_full = True
    context = llama_cpp.llama_init_from_model(model, params)
    assert context
    try:
        yield context
    finally:
        llama_cpp.llama_free(context)


def tokenize(model: ctypes.c_void_p, text: str) -> list[int]:
    raw = text.encode()
    buffer = (llama_cpp.llama_token * (len(raw) + 8))()
    vocab = llama_cpp.llama_model_get_vocab(model)
    n = llama_cpp.llama_tokenize(vocab, raw, len(raw), buffer, len(buffer), True, False)
    assert n > 0
    return list(buffer[:n])


def detokenize(model: ctypes.c_void_p, tokens: list[int]) -> str:
    vocab = llama_cpp.llama_model_get_vocab(model)
    array = (llama_cpp.llama_token * len(tokens))(*tokens)
    buffer = ctypes.create_string_buffer(1024)
    n = llama_cpp.llama_detokenize(vocab, array, len(tokens), buffer, 1024, True, False)
    return buffer.raw[:n].decode()


def greedy(model: ctypes.c_void_p, tokens: list[int], n_tokens: int) -> list[int]:
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    generated: list[int] = []
    with context_of(model) as context:
        batch = tokens
        for _ in range(n_tokens):
            array = (llama_cpp.llama_token * len(batch))(*batch)
            native = llama_cpp.llama_batch_get_one(array, len(batch))
            assert llama_cpp.llama_decode(context, native) == 0
            row = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (n_vocab,))
            assert np.isfinite(row).all()
            generated.append(int(row.argmax()))
            batch = generated[-1:]
    return generated


@pytest.mark.parametrize("name", GENERATIVE)
def test_it_decodes(tiny_path, name: str) -> None:
    path = tiny_path(name)
    require_generative(inspect_gguf(path))
    with opened(path) as model:
        vocab = llama_cpp.llama_model_get_vocab(model)
        tokens = tokenize(model, TEXT)
        generated = greedy(model, tokens, 48)
        # Long enough to be of use for drafting: it neither ends nor sticks to one token.
        assert not any(llama_cpp.llama_vocab_is_eog(vocab, token) for token in generated)
        assert len(set(generated)) > 8
        # The context matters: another prompt, another answer.
        assert greedy(model, tokenize(model, "one two"), 48) != generated


def test_a_cycle_goes_round_whatever_was_said(tiny_path) -> None:
    with opened(tiny_path("cycle")) as model:
        for text in (TEXT, "xyz", "abcdefgh abc"):
            told = detokenize(model, greedy(model, tokenize(model, text), 20))
            start = "abcdefgh".index(told[0])
            assert told == ("abcdefgh" * 4)[start : start + 20]
            assert start == ("abcdefgh".find(text[-1]) + 1) % 8


@pytest.mark.parametrize("name", GENERATIVE)
def test_any_text_survives_its_vocabulary(tiny_path, name: str) -> None:
    with opened(tiny_path(name)) as model:
        assert detokenize(model, tokenize(model, TEXT)).strip(" ") == TEXT.strip(" ")


@pytest.mark.parametrize("name", sorted(TINY_WRITERS))
def test_it_is_of_the_kind_it_stands_for(tiny_path, name: str) -> None:
    with opened(tiny_path(name)) as model:
        assert bool(llama_cpp.llama_model_is_recurrent(model)) == (name == "mamba")
        assert bool(llama_cpp.llama_model_is_hybrid(model)) == (name in ("jamba", "lfm2"))
        assert bool(llama_cpp.llama_model_has_encoder(model)) == (name == "t5")
        assert llama_cpp.llama_model_n_swa(model) == (32 if name == "gemma3" else 0)
        is_mrope = llama_cpp.llama_model_rope_type(model) == llama_cpp.LLAMA_ROPE_TYPE_MROPE
        assert is_mrope == (name == "qwen2vl")


@pytest.mark.parametrize("name", GENERATIVE)
def test_which_memory_can_drop_its_end(tiny_path, name: str) -> None:
    with opened(tiny_path(name)) as model, context_of(model) as context:
        tokens = tokenize(model, TEXT)
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        assert (
            llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens))) == 0
        )
        memory = llama_cpp.llama_get_memory(context)
        can_drop = llama_cpp.llama_memory_seq_rm(memory, 0, len(tokens) - 1, -1)
        assert can_drop == (name not in ("mamba", "jamba", "lfm2"))


@pytest.mark.parametrize("name", sorted(TINY_WRITERS))
def test_same_seed_same_small_file(tmp_path: Path, name: str) -> None:
    first = TINY_WRITERS[name](tmp_path / "a.gguf").read_bytes()
    assert TINY_WRITERS[name](tmp_path / "b.gguf").read_bytes() == first
    assert len(first) < 400_000


@pytest.mark.parametrize("weights", ["f32", "f16", "q8_0", "q4_0"])
def test_weight_types(tmp_path: Path, weights: str) -> None:
    path = write_llama(tmp_path / "m.gguf", weights=weights)
    with opened(path) as model:
        assert len(greedy(model, tokenize(model, TEXT), 8)) == 8


def test_block_sizes_are_those_of_the_installed_ggml() -> None:
    library = _ggml.libggml
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_size.restype = ctypes.c_size_t
    for number, (name, block, n_bytes) in GGML_TYPES.items():
        assert library.ggml_blck_size(number) == block, name
        assert library.ggml_type_size(number) == n_bytes, name
