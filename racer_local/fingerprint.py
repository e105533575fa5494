"""Tell models apart by their header, without reading the weights. Layer: files (no llama_cpp)."""

from __future__ import annotations

import hashlib
import json
import os

from racer_local.gguf_header import inspect_gguf

__all__ = ["fingerprint"]

# Part of what is hashed: a change of the rule must not match what was kept under the old one.
_RULE = "racer-local model 1"


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
