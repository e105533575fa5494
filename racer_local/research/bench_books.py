"""Measure what a phrase book brings, on prompts about an indexed repository.

    python -m racer_local.research.bench_books [--model NAME] [--first N] [--last N]
                                               [--max-tokens N] [--unrelated N]

The repository is the source of packages that are installed beside this one. Prompts are made of
its own files: *complete* (the code before a function and its first lines), *quote* (its first
lines, then "write the whole function"), *explain* (the function, to be explained and quoted). Each
is answered greedily from an empty cache by plain decoding, by ``auto``, and by ``auto`` with the
book, in turning order. ``--unrelated N`` takes N prompts of every bundled suite instead: what a
book costs where it has nothing to say.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from racer_local.config import DraftConfig, GenerationConfig, ModelConfig, SamplingConfig
from racer_local.speculation.stats import Stats

if TYPE_CHECKING:
    from racer_local.decoding.session import Session

__all__ = ["RepositoryPrompt", "main", "repository_prompts"]

PACKAGES = (
    "click", "hypothesis", "jinja2", "packaging", "pathspec", "platformdirs", "pluggy", "pygments",
)  # fmt: skip
_N_LINES = (12, 60)
_MODES = ("off", "auto", "book")


class RepositoryPrompt(NamedTuple):
    """One prompt about a repository.

    Attributes:
        category: complete, quote or explain.
        is_chat: ask through the chat template; else continue the text.
        text: what is asked.
    """

    category: str
    is_chat: bool
    text: str


def repository_prompts(root: Path, packages: Sequence[str], n: int) -> list[RepositoryPrompt]:
    """Make ``n`` prompts of the functions in packages, each of another file, kind after kind."""
    chance = random.Random(20)
    files = [
        file
        for package in packages
        for file in sorted((root / package).rglob("*.py"))
        if 3000 < file.stat().st_size < 60_000
    ]
    chance.shuffle(files)
    prompts: list[RepositoryPrompt] = []
    for file in files:
        if len(prompts) == n:
            break
        source = file.read_text(encoding="utf-8")
        functions = list(_functions(source))
        if functions:
            name = file.relative_to(root).as_posix()
            kind = ("complete", "quote", "explain")[len(prompts) % 3]
            prompts.append(_ask(kind, name, source, chance.choice(functions)))
    return prompts


def _functions(source: str) -> Iterator[ast.FunctionDef]:
    least, most = _N_LINES
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            n_lines = (node.end_lineno or node.lineno) - node.lineno
            if least <= n_lines <= most:
                yield node


def _ask(kind: str, name: str, source: str, function: ast.FunctionDef) -> RepositoryPrompt:
    lines = source.splitlines(keepends=True)
    start, end = function.lineno - 1, function.end_lineno or function.lineno
    if kind == "complete":
        first = function.body[0].end_lineno or start + 1
        return RepositoryPrompt(kind, False, "".join(lines[max(0, start - 40) : first + 2]))
    if kind == "quote":
        head = "".join(lines[start : start + 5])
        asked = f"Here is the beginning of a function of {name}:\n```python\n{head}```\n"
        return RepositoryPrompt(kind, True, f"{asked}Write the whole function.")
    body = "".join(lines[start:end])
    asked = f"Explain this function of {name} and quote the lines you explain.\n"
    return RepositoryPrompt(kind, True, f"{asked}```python\n{body}```")


def _unrelated(per_category: int) -> list[RepositoryPrompt]:
    from racer_local.bench.suites import CATEGORIES, choose

    return [
        RepositoryPrompt(p.category, True, p.turns[0]) for p in choose(CATEGORIES, per_category)
    ]


def _book_of(root: Path, packages: Sequence[str], model_path: Path, path: Path) -> None:
    from racer_local.backend.model import LlamaModel
    from racer_local.books.indexing import index_files
    from racer_local.books.text_files import find_files
    from racer_local.gguf.fingerprint import tokenizer_fingerprint

    model = LlamaModel(ModelConfig(path=model_path), vocab_only=True)
    try:
        folders = [root / name for name in packages if (root / name).is_dir()]
        found = find_files(folders, 2**20, use_gitignore=False)
        mark = tokenizer_fingerprint(model_path)
        book, _ = index_files(found, model.tokenize_text, mark, model.n_vocab)
    finally:
        model.close()
    book.save(path)


class _Bench:
    """One model and a drafter per mode, which learn from prompt to prompt."""

    def __init__(self, model: Session, n_tokens: int) -> None:
        from racer_local.drafting.make import make_drafter

        self._model = model
        self._limits = GenerationConfig(max_tokens=n_tokens)
        model.engine.use(DraftConfig())
        cost = model.engine.cost
        self._drafters = {
            "auto": make_drafter(DraftConfig(), cost),
            "book": make_drafter(DraftConfig(), cost, books=model.books),
        }

    def answer(self, mode: str, prompt: RepositoryPrompt) -> tuple[Stats, list[int]] | None:
        """Answer from an empty cache; None if the prompt is too long."""
        model = self._model
        if prompt.is_chat:
            tokens = model.chat_tokens([{"role": "user", "content": prompt.text}])
        else:
            tokens = model.prompt_tokens(prompt.text)
        if len(tokens) > 1500:
            return None
        if mode == "off":
            model.engine.use(DraftConfig(mode="off"))
        else:
            model.engine.use(self._drafters[mode], budget=64)
        model.engine.forget()
        stream = model.stream(tokens, SamplingConfig(temperature=0), self._limits)
        with stream:
            for _ in stream:
                pass
        return stream.stats, stream.tokens


def _run(bench: _Bench, prompts: Sequence[RepositoryPrompt]) -> dict[str, dict[str, list[float]]]:
    """Return tokens, seconds, steps and answers like plain decoding's, per mode and category."""
    sums: dict[str, dict[str, list[float]]] = {mode: {} for mode in _MODES}
    for number, prompt in enumerate(prompts):
        answers = {}
        for turn in range(len(_MODES)):
            mode = _MODES[(number + turn) % len(_MODES)]
            answer = bench.answer(mode, prompt)
            if answer is not None:
                answers[mode] = answer
        for mode, (stats, tokens) in answers.items():
            same = float(tokens == answers["off"][1])
            row = (stats.n_decoded, stats.decode_s, stats.n_steps, same, 1.0)
            for name in (prompt.category, "all"):
                old = sums[mode].setdefault(name, [0.0] * len(row))
                sums[mode][name] = [a + b for a, b in zip(old, row, strict=True)]
        sys.stderr.write(f"\r{number + 1} of {len(prompts)}")
        sys.stderr.flush()
    sys.stderr.write("\n")
    return sums


def main(arguments: Sequence[str]) -> None:
    """Measure, and write one JSON object to stdout."""
    from racer_local.concurrency.compute_thread import CallerThread
    from racer_local.decoding.session import Session
    from racer_local.models.store import resolve_model

    parser = argparse.ArgumentParser(prog="racer_local.research.bench_books")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int)
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--unrelated", type=int, default=0)
    options = parser.parse_args(arguments)
    # Where NumPy is, the other packages are.
    import numpy as np

    root = Path(np.__file__).parents[1]
    n_unrelated = options.unrelated
    prompts = _unrelated(n_unrelated) if n_unrelated else repository_prompts(root, PACKAGES, 36)
    path = resolve_model(options.model)
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder) / "repository.npz"
        _book_of(root, PACKAGES, path, book)
        with Session(
            ModelConfig(path=path, n_ctx=2048), books=[str(book)], compute=CallerThread()
        ) as model:
            bench = _Bench(model, options.max_tokens)
            sums = _run(bench, prompts[options.first : options.last])
    for name in sorted(sums["off"]):
        plain = sums["off"][name]
        for mode in _MODES:
            tokens, seconds, steps, same, n = sums[mode][name]
            speed = tokens / seconds / (plain[0] / plain[1])
            sys.stderr.write(
                f"{name:16} {mode:5} {speed:.3f}x  {tokens / steps:.2f} tokens per step  "
                f"{same / n:.0%} same\n"
            )
    sys.stdout.write(json.dumps(sums) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
