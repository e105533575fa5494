"""Tell models apart by their header, without reading the weights. Layer: files (no llama_cpp)."""

from __future__ import annotations

import hashlib
import json
import os

from racer_local.gguf.header import inspect_gguf

__all__ = ["fingerprint", "tokenizer_fingerprint"]

# Part of what is hashed: a change of the rule must not match what was kept under the old one.
_RULE = "racer-local model 1"
_TOKENIZER_RULE = "racer-local tokenizer 1"
# What decides how text becomes token ids; files of one model differ in the others.
_TOKENIZER_KEYS = (
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.remove_extra_whitespaces",
    "tokenizer.ggml.precompiled_charsmap",
)


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Hash what identifies a model: architecture, name, vocabulary, size and quantization.

    The same file in another place has the same fingerprint; another quantization of the same
    model has another one.

    Args:
        path: a GGUF file; of a split model, its first part.

    Returns:
        64 hexadecimal digits.

    Raises:
        ModelLoadError: the file is missing or no sound GGUF file.
    """
    info = inspect_gguf(path)
    facts = [
        _RULE,
        info.arch,
        info.name,
        info.tokenizer,
        info.n_vocab,
        info.n_tensors,
        info.size_bytes,
        info.file_type,
    ]
    return hashlib.sha256(json.dumps(facts).encode("utf-8")).hexdigest()


def tokenizer_fingerprint(path: str | os.PathLike[str]) -> str:
    """Hash all that decides how text becomes token ids.

    All quantizations of a model have the same one, and so do other models with its tokenizer.

    Args:
        path: a GGUF file; of a split model, its first part.

    Returns:
        64 hexadecimal digits.

    Raises:
        ModelLoadError: the file is missing or no sound GGUF file.
    """
    spans = inspect_gguf(path).tokenizer_spans
    digest = hashlib.sha256(_TOKENIZER_RULE.encode("utf-8"))
    with open(path, "rb") as file:
        for key in _TOKENIZER_KEYS:
            start, end = spans.get(key, (0, 0))
            digest.update(f"\0{key}\0{end - start}\0".encode())
            file.seek(start)
            digest.update(file.read(end - start))
    return digest.hexdigest()
