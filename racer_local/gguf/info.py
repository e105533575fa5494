"""What a GGUF header says about its model. Layer: pure (standard library only)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from racer_local.gguf.reader import Scalar

__all__ = ["GgufInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufInfo:
    """What a GGUF header says about its model.

    Attributes:
        path: the file; of a split model, its first part.
        version: of the file format.
        arch: llama.cpp's name of the architecture; '' where the file names none.
        name: the model's own name, or ''.
        file_type: how most weights are stored, for example ``Q4_K_M``.
        n_tensors: tensors in all parts together.
        n_kv: metadata keys of this file.
        size_bytes: size of all parts together.
        context_length: tokens the model was trained for, or None.
        has_chat_template: whether the file brings a chat template.
        n_parts: files the model is split into; 1 for an ordinary one.
        tokenizer: llama.cpp's name of the tokenizer kind, or ''.
        n_vocab: tokens in the vocabulary, or None.
        metadata: all keys with a single value; longer texts and arrays are left out.
        tokenizer_spans: where the values of the tokenizer's keys lie in the file, by key.
    """

    path: Path
    version: int
    arch: str
    name: str
    file_type: str
    n_tensors: int
    n_kv: int
    size_bytes: int
    context_length: int | None
    has_chat_template: bool
    n_parts: int
    tokenizer: str
    n_vocab: int | None
    metadata: Mapping[str, Scalar]
    tokenizer_spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
