"""Will a model fit into memory? Worked out from its header, before anything is loaded.

An estimate for the processor's memory, a little on the high side. Where a part of it would lie on
a graphics card with memory of its own, nothing is claimed. Layer: files (psutil, no llama_cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from racer_local.config import DEFAULT_N_CTX, ModelConfig, choose_n_ctx
from racer_local.errors import ModelLoadError
from racer_local.gguf_header import GgufInfo, inspect_gguf
from racer_local.gguf_reader import Scalar, quoted
from racer_local.native_check import gpu_backends

__all__ = [
    "MemoryEstimate",
    "available_bytes",
    "context_size",
    "estimate_memory",
    "largest_context",
    "require_memory",
]

_BYTES_PER_ELEMENT = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}
# Python, llama.cpp and what drafting keeps.
_PROGRAM_BYTES = 128 << 20
_PROMPT_LOGITS_BYTES = 64 << 20
_UBATCH = 512
# Rounded, so that the advice can be read.
_CTX_STEP = 1024
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a model needs, in bytes.

    Attributes:
        weights: the model file.
        context: the KV cache.
        work: buffers of the computation, and the program itself.
        n_ctx: context size it is for.
    """

    weights: int
    context: int
    work: int
    n_ctx: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.context + self.work

    def describe(self) -> str:
        """Say how it comes about, in gigabytes."""
        return (
            f"about {self.total / 1e9:.1f} GB of memory (weights {self.weights / 1e9:.1f}, "
            f"context of {self.n_ctx:,} tokens {self.context / 1e9:.1f}, "
            f"working space {self.work / 1e9:.1f})"
        )


def context_size(info: GgufInfo, n_ctx: int | None) -> int:
    """Return the context size that a setting leads to; see ``ModelConfig.n_ctx``."""
    return choose_n_ctx(n_ctx, info.context_length or 0)


def estimate_memory(info: GgufInfo, n_ctx: int, kv_type: str = "f16") -> MemoryEstimate:
    """Estimate what a model with a context of ``n_ctx`` tokens needs."""
    count = _Counts(info.metadata, info.arch)
    n_embd = count.of("embedding_length", 0)
    n_head = count.of("attention.head_count", 0)
    # Given layer by layer it is not kept; then every layer counts as if it had all heads.
    n_head_kv = count.of("attention.head_count_kv", n_head)
    head = n_embd // n_head if n_head else 0
    per_head = count.of("attention.key_length", head) + count.of("attention.value_length", head)
    elements = count.of("block_count", 0) * n_head_kv * per_head
    n_vocab = info.n_vocab or 0
    n_ff = count.of("feed_forward_length", 4 * n_embd)
    n_rows = min(_UBATCH, max(n_ctx, 1))
    logits = min(n_rows * n_vocab * 4, _PROMPT_LOGITS_BYTES)
    activations = 4 * n_rows * (6 * n_embd + 3 * n_ff)
    mask = 6 * n_rows * n_ctx
    return MemoryEstimate(
        weights=info.size_bytes,
        context=int(n_ctx * elements * _BYTES_PER_ELEMENT[kv_type]),
        work=_PROGRAM_BYTES + 2 * logits + activations + mask,
        n_ctx=n_ctx,
    )


class _Counts:
    """Numbers of the architecture; what is missing, odd or absurd takes its default."""

    def __init__(self, metadata: Mapping[str, Scalar], arch: str) -> None:
        self._metadata = metadata
        self._arch = arch

    def of(self, key: str, default: int) -> int:
        value = self._metadata.get(f"{self._arch}.{key}")
        is_count = isinstance(value, int) and not isinstance(value, bool)
        return value if is_count and 0 < value < 2**31 else default  # type: ignore[operator,return-value]  # checked by is_count


def largest_context(info: GgufInfo, free_bytes: int, kv_type: str = "f16") -> int:
    """Return the largest context that fits, in steps of 1,024 tokens and at most the trained one.

    0 means that none does.
    """
    low, high = 0, max(info.context_length or 0, DEFAULT_N_CTX) // _CTX_STEP
    while low < high:
        middle = (low + high + 1) // 2
        fits = estimate_memory(info, middle * _CTX_STEP, kv_type).total <= free_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * _CTX_STEP


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Return how much memory can be had without swapping, a container's limit included."""
    import psutil  # type: ignore[import-untyped]  # no stubs needed for one call

    available: int = psutil.virtual_memory().available
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        folder = cgroup / "memory"
        limit = _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.usage_in_bytes")
        stat = folder / "memory.stat"
    else:
        stat = cgroup / "memory.stat"
    if limit is None or used is None:
        return available
    # Files that were read count as used, but make way.
    return max(0, min(available, limit - used + _cached_bytes(stat)))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _cached_bytes(stat: Path) -> int:
    try:
        rows = dict(line.split(None, 1) for line in stat.read_text(encoding="ascii").splitlines())
        return int(rows.get("inactive_file", 0)) + int(rows.get("active_file", 0))
    except (OSError, ValueError):
        return 0


def require_memory(config: ModelConfig, free_bytes: int | None = None) -> None:
    """Refuse a model that would make the machine swap or kill the program.

    Args:
        config: what is about to be opened.
        free_bytes: memory to be had; None looks.

    Raises:
        ModelLoadError: it does not fit; with the figures and what would fit. Also for a file that
            is no sound model.
    """
    info = inspect_gguf(config.path)
    uses_gpu = config.device != "cpu" and config.n_gpu_layers != 0
    if uses_gpu and gpu_backends() - {"metal"}:
        return
    estimate = estimate_memory(info, context_size(info, config.n_ctx), config.kv_type or "f16")
    free = available_bytes() if free_bytes is None else free_bytes
    if estimate.total <= free:
        return
    fitting = largest_context(info, free, config.kv_type or "f16")
    advice = (
        f"a context of {fitting:,} tokens would fit (--ctx {fitting})"
        if 0 < fitting < estimate.n_ctx
        else "take a smaller quantization or a smaller model, or close other programs"
    )
    raise ModelLoadError(
        f"{quoted(config.path.name)} needs {estimate.describe()}, but {free / 1e9:.1f} GB are "
        f"free; {advice}; --no-memory-check tries all the same"
    )
