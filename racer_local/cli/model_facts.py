"""What ``models show`` says about a file, from its header alone."""

from __future__ import annotations

from pathlib import Path

from racer_local.config import ModelConfig
from racer_local.errors import ConfigError, RacerError
from racer_local.gguf.header import inspect_gguf, read_text_value
from racer_local.gguf.info import GgufInfo
from racer_local.gguf.kinds import require_generative
from racer_local.hardware.memory import (
    available_bytes,
    context_size,
    estimate_memory,
    expected_kv_type,
    largest_context,
)

__all__ = ["describe", "read_template"]

# Architectures with recurrent layers, whose state cannot be taken back.
_RECURRENT = frozenset(
    {
        "mamba", "mamba2", "jamba", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "falcon-h1", "lfm2",
        "lfm2moe", "granitehybrid", "nemotron_h", "nemotron_h_moe", "plamo2", "plamo3",
        "kimi-linear", "qwen3next", "qwen35", "qwen35moe", "bailingmoe2-linear",
    }
)  # fmt: skip

_NO_DRAFTS = "no: its recurrent layers cannot take back what they have read; decoded plainly"
_NOT_NEEDED = "always: it is decoded plainly"
_NO_Q8_CACHE = "no: it needs a q8_0 KV cache, which heads of this size cannot have"
_UNQUANTIZED = "no: llama.cpp computes several rows of unquantized weights unlike one"
# Rows of a tree that were found to be computed as single ones are, by the weights' type; see
# docs/lossless.md. Where a model is opened it is tried again.
_EXACT_ROWS = {"Q4_0": 16, "Q4_1": 16, "Q8_0": 16}
_EXACT_ROWS_K = 3
_PROBED = "not known for this quantization: --exact tries it when the model is opened"


def describe(config: ModelConfig) -> list[tuple[str, str]]:
    """List what a model is and needs, as labels and values.

    Raises:
        ModelLoadError: the file is no sound model.
    """
    info = inspect_gguf(config.path)
    rows = [
        ("file", str(config.path)),
        ("size", f"{info.size_bytes / 1e9:.2f} GB" + _parts(info)),
        ("name", info.name or "-"),
        ("architecture", info.arch or "-"),
        ("quantization", info.file_type),
        ("trained context", f"{info.context_length:,} tokens" if info.context_length else "-"),
        ("vocabulary", f"{info.n_vocab:,} tokens" if info.n_vocab else "-"),
        ("chat template", "yes" if info.has_chat_template else "no: a base model, use --raw"),
        ("licence", _licence(info)),
    ]
    try:
        require_generative(info)
    except RacerError as error:
        return [*rows, ("cannot be used", str(error))]
    kv_type = expected_kv_type(info, config)
    estimate = estimate_memory(info, context_size(info, config.n_ctx), kv_type)
    free = available_bytes()
    rows.append(("KV cache", kv_type))
    rows.append(("memory", estimate.describe()))
    fits = "it fits" if estimate.total <= free else "it does not fit"
    largest = largest_context(info, free, kv_type)
    rows.append(
        ("free here", f"{free / 1e9:.1f} GB: {fits}; the largest context is {largest:,} tokens")
    )
    is_recurrent = info.arch in _RECURRENT
    rows.append(("tree drafting", _NO_DRAFTS if is_recurrent else "yes"))
    rows.append(("exact mode", _NOT_NEEDED if is_recurrent else _exactness(info)))
    return rows


def _exactness(info: GgufInfo) -> str:
    """Say whether ``--exact`` can draft, from what was measured of the weights' type."""
    on_processor = ModelConfig(path=info.path, device="cpu")
    if expected_kv_type(info, on_processor) != "q8_0":
        return _NO_Q8_CACHE
    kind = info.file_type
    if kind in ("F32", "F16", "BF16"):
        return _UNQUANTIZED
    n_rows = _EXACT_ROWS.get(kind) or (_EXACT_ROWS_K if "_K" in kind else 0)
    if not n_rows:
        return _PROBED
    return f"yes: trees of {n_rows} rows or more on a processor with AVX-512; tried on others"


def _parts(info: GgufInfo) -> str:
    return f" in {info.n_parts} parts" if info.n_parts > 1 else ""


def _licence(info: GgufInfo) -> str:
    for key in ("general.license.name", "general.license"):
        value = info.metadata.get(key)
        if isinstance(value, str) and value:
            return value
    return "the file does not say"


def read_template(path: Path) -> str:
    """Return the chat template in a file.

    Raises:
        ConfigError: it has none.
    """
    text = read_text_value(path, "tokenizer.chat_template")
    if text is None:
        raise ConfigError(f"{path.name} has no chat template")
    return text
