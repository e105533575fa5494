"""What ``models show`` says about a file, from its header alone."""

from __future__ import annotations

from pathlib import Path

from racer_local.config import ModelConfig
from racer_local.errors import ConfigError, RacerError
from racer_local.gguf_header import GgufInfo, inspect_gguf, read_text_value
from racer_local.gguf_kinds import require_generative
from racer_local.memory import available_bytes, context_size, estimate_memory, largest_context

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
_PROBED = "where this machine computes several rows like one: racer-local verify tells"


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
    estimate = estimate_memory(info, context_size(info, config.n_ctx))
    free = available_bytes()
    rows.append(("memory", estimate.describe()))
    fits = "it fits" if estimate.total <= free else "it does not fit"
    largest = largest_context(info, free)
    rows.append(
        ("free here", f"{free / 1e9:.1f} GB: {fits}; the largest context is {largest:,} tokens")
    )
    is_recurrent = info.arch in _RECURRENT
    rows.append(("tree drafting", _NO_DRAFTS if is_recurrent else "yes"))
    rows.append(("exact mode", _NOT_NEEDED if is_recurrent else _PROBED))
    return rows


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
