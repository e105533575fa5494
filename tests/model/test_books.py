"""Phrase books on real models: indexed, drafted from, refused, remembered, forgotten."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from in_process import run_cli
from inputs import GREEDY, generate, open_session

from racer_local.backend.model import LlamaModel
from racer_local.books.phrase_book import PhraseBook
from racer_local.books.phrase_build import SourceText, build_book
from racer_local.config import DraftConfig, GenerationConfig, ModelConfig
from racer_local.decoding.session import Session
from racer_local.errors import ConfigError
from racer_local.gguf.fingerprint import tokenizer_fingerprint
from racer_local.speculation.tree import Source

SOURCE = Path(__file__).parents[1] / "tiny_vocab.py"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def racer(smol_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("RACER_MODELS_DIR", str(smol_path.parent))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = run_cli(*arguments)
        told = (each.decode() for each in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, *told)

    return run


def test_a_vocabulary_alone_tokenizes_like_the_whole_model(
    smol_model: Session, smol_path: Path
) -> None:
    vocabulary = LlamaModel(ModelConfig(path=smol_path), vocab_only=True)
    try:
        for text in ("", "Grüße 👍 <|im_end|>\n\n  def f(x):\n", SOURCE.read_text("utf-8")):
            expected = smol_model.model.tokenize(text, add_special=False, parse_special=False)
            assert vocabulary.tokenize_text(text).tolist() == expected
        assert vocabulary.tokenize_text("a\ud800b").tolist() == vocabulary.tokenize(
            "a?b", add_special=False
        )
    finally:
        vocabulary.close()


def test_a_book_is_drafted_from_and_the_text_is_plain_decodings(
    racer: Run, level_steps: None, smol_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    # What the model says by itself, as a file: the surest thing to draft.
    prompt = "The planets of the solar system, one per line:\n"
    with open_session(ModelConfig(path=smol_path, n_ctx=512), DraftConfig(mode="off")) as model:
        tokens = model.prompt_tokens(prompt)
        plain, _ = generate(model, tokens, 64)
        answer = b"".join(model.model.piece(token) for token in plain).decode("utf-8", "replace")
    (tmp_path / "code" / "answer.txt").write_text(prompt + answer, "utf-8")
    done = racer("index", "code", "-o", "planets")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("1 file, ")
    options = ("--raw", prompt, "--temp", "0", "-n", "64", "--budget", "8")
    done = racer("generate", *options, "--book", "planets", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tokens"] == plain
    assert report["text"] == answer
    assert report["drafted_from"].keys() == {"code/answer.txt"}
    accepted = report["stats"]["by_source"]["phrasebook"]["accepted"]
    assert accepted == sum(report["drafted_from"].values()) > 10
    done = racer("generate", *options, "--book", "planets", "--stats")
    assert done.stdout == answer
    assert "tokens from 'code/answer.txt'" in done.stderr


def test_books_of_another_tokenizer_and_odd_names_are_refused(
    racer: Run, gemma_path: Path, smol_path: Path, tmp_path: Path
) -> None:
    assert tokenizer_fingerprint(gemma_path) != tokenizer_fingerprint(smol_path)
    (tmp_path / "a.txt").write_text("some text of no interest", "utf-8")
    done = racer("index", "a.txt", "-o", "a.npz", "-m", str(gemma_path))
    assert done.returncode == 0, done.stderr
    assert PhraseBook.load(tmp_path / "a.npz").n_vocab > 200_000
    for arguments, message in (
        (("generate", "--book", "a.npz", "hi"), "tokenizer of another model"),
        (("index", "a.txt", "-o", "a.npz"), "tokenizer of another model"),
        (("generate", "--book", "none", "hi"), "there is no phrase book"),
        (("generate", "--book", "a/b", "hi"), "no name for a phrase book"),
        (("index", "none", "-o", "x"), "there is no file or folder"),
        (("index", ".", "-o", "x", "--size", "0"), "sizes must be positive"),
        (("index", "a.txt", "-o", "x", "--size", "9999"), "size of a phrase book"),
        (("index", "a.txt", "-o", "x", "--max-file", "1e-6"), "no text to index"),
    ):
        done = racer(*arguments)
        assert done.returncode == 2, arguments
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
    (tmp_path / "a.npz").write_bytes(b"PK\3\4 damaged")
    done = racer("generate", "--book", "a.npz", "hi")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot be read as a phrase book" in done.stderr


def test_what_is_remembered_is_drafted_from_until_forgotten(racer: Run, level_steps: None) -> None:
    ask = ("generate", "--raw", "Five fruits:\n1.", "--temp", "0", "-n", "48", "--json")
    first = json.loads(racer(*ask).stdout)
    assert first["stats"]["by_source"]["phrasebook"]["drafted"] == 0
    done = racer(*ask, "--remember")
    assert json.loads(done.stdout)["tokens"] == first["tokens"]
    assert "racer-local forget removes it" in done.stderr
    again = json.loads(racer(*ask, "--remember").stdout)
    assert again["tokens"] == first["tokens"]
    assert again["stats"]["by_source"]["phrasebook"]["accepted"] > 0
    assert all(name.startswith("conversation of") for name in again["drafted_from"])
    # Without the option nothing is looked up.
    assert "drafted_from" not in json.loads(racer(*ask).stdout)
    done = racer("forget")
    assert (done.returncode, done.stderr.count("removed")) == (0, 1)
    assert racer("forget").stderr == "nothing was remembered\n"


def test_a_model_with_a_missing_book_is_not_loaded(smol_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no phrase book"):
        open_session(ModelConfig(path=smol_path), books=["none"])


def test_sampled_answers_do_not_depend_on_books(
    smol_path: Path, tmp_path: Path, level_steps: None
) -> None:
    config = ModelConfig(path=smol_path, n_ctx=256)
    sampling = replace(GREEDY, temperature=0.7, seed=3)
    with open_session(config, DraftConfig(mode="off")) as model:
        prompt = model.prompt_tokens("My favourite animals are")
        plain, _ = generate(model, prompt, 48, sampling=sampling)
        vocabulary = model.model.n_vocab
    text = SourceText("answer", 999, 1, np.array([*prompt, *plain], np.int32))
    path = tmp_path / "b.npz"
    build_book([text], tokenizer_fingerprint(smol_path), vocabulary).save(path)
    with open_session(config, DraftConfig(budget=8), books=[str(path)]) as model:
        stream = model.stream(prompt, sampling, GenerationConfig(max_tokens=48))
        with stream:
            for _ in stream:
                pass
        assert stream.tokens == plain
        assert dict(model.drafted_from(stream)).keys() <= {"answer"}
        assert stream.stats.by_source[Source.PHRASEBOOK].accepted > 0


def test_exact_text_stays_exact_with_a_book(
    smol_path: Path, tmp_path: Path, level_steps: None
) -> None:
    config = ModelConfig(path=smol_path, n_ctx=1024, exact=True)
    with open_session(config, DraftConfig(mode="off")) as model:
        prompt = model.prompt_tokens(SOURCE.read_text("utf-8"))[:500]
        plain, _ = generate(model, prompt, 96)
        vocabulary = model.model.n_vocab
    # A book that is right half of the time.
    text = [*prompt[:200], *plain[:40], *prompt[200:220], *plain[50:]]
    path = tmp_path / "b.npz"
    source = SourceText("answer", 999, 1, np.array(text, np.int32))
    build_book([source], tokenizer_fingerprint(smol_path), vocabulary).save(path)
    with open_session(config, books=[str(path)]) as model:
        drafted, _ = generate(model, prompt, 96)
    assert drafted == plain
