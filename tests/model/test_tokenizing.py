"""Text to tokens and back: the same as llama.cpp's own, whole, from any thread, in linear time."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest
from inputs import EMOJI

from racer_local.backend.model import LlamaModel
from racer_local.config import ModelConfig
from racer_local.decoding.session import Session

PARTS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "</s>"),
    *("<s>", "user", "\n", " ", "  ", "\t", "Hello world", "<|im_", "start|>", "你好", EMOJI, "'s"),
]


def native(model: LlamaModel, text: str, *, special: bool) -> list[int]:
    """Tokenize with one call of llama.cpp."""
    encoded = text.encode()
    buffer = (ctypes.c_int32 * (len(encoded) + 8))()
    n = llama_cpp.llama_tokenize(
        model._vocab, encoded, len(encoded), buffer, len(buffer), True, special
    )
    tokens = list(buffer[:n])
    doubled = model.adds_bos and tokens[:2] == [model.bos, model.bos]
    return tokens[1:] if doubled else tokens


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("which", ["smol", "gemma", "llama", "llama-bpe"])
def test_a_long_text_cut_at_special_tokens_has_the_tokens_of_the_whole(
    request: pytest.FixtureRequest,
    tiny_path: Callable[[str], Path],
    which: str,
    seed: int,
    special: bool,
) -> None:
    if which in ("smol", "gemma"):
        model = request.getfixturevalue(which).model
    else:
        model = LlamaModel(ModelConfig(path=tiny_path(which)), vocab_only=True)
    draw = random.Random(seed)
    text = "".join(draw.choices(PARTS, k=2500))
    assert len(text.encode()) > 8192
    assert model.tokenize(text, parse_special=special) == native(model, text, special=special)


def test_a_text_of_control_tokens_is_handed_over_in_parts_of_bounded_size(
    smol: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = llama_cpp.llama_tokenize

    def tokenize(vocab: object, text: bytes, n_bytes: int, *rest: object) -> int:
        sizes.append(n_bytes)
        return int(real(vocab, text, n_bytes, *rest))

    monkeypatch.setattr(llama_cpp, "llama_tokenize", tokenize)
    tokens = smol.prompt_tokens("<|im_start|>" * 5000)
    assert len(set(tokens)) == 1
    assert len(tokens) == 5000
    # What llama.cpp does with a part takes time with the square of its control tokens.
    assert max(sizes) < 3000


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("line", ["a\n", "\n", "\n" * 32 + "a"])
def test_tokens_that_a_user_defined_are_cut_at_too(
    gemma: Session, line: str, special: bool
) -> None:
    text = line * (10_000 // len(line))
    tokens = gemma.model.tokenize(text, parse_special=special)
    assert tokens == native(gemma.model, text, special=special)
    plain = gemma.model.tokenize_text(text).tolist()
    assert plain == gemma.model.tokenize(text, add_special=False, parse_special=False)


def test_threads_that_read_pieces_at_once_get_the_right_bytes(
    tiny_path: Callable[[str], Path],
) -> None:
    config = ModelConfig(path=tiny_path("llama-bpe"))
    expected = list(LlamaModel(config, vocab_only=True).pieces())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            model = LlamaModel(config, vocab_only=True)
            wrong: list[int] = []

            def read(model: LlamaModel = model, wrong: list[int] = wrong) -> None:
                for token, piece in enumerate(expected):
                    if piece is not None and model.piece(token, special=True) != piece:
                        wrong.append(token)

            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert wrong == []
    finally:
        sys.setswitchinterval(interval)


def test_a_text_s_bytes_are_those_of_its_pieces(smol: Session) -> None:
    text = f"One {EMOJI} two\n" * 50
    tokens = smol.model.tokenize(text)
    assert smol.model.detokenize(tokens).decode() == text
