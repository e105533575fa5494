"""Will a model fit into memory? Worked out from its header, before anything is loaded.

An estimate for the processor's memory, a little on the high side. Where a part of it would lie on
a graphics card with memory of its own, only that card's memory is judged, and only if all layers
go there and llama.cpp tells how much of it is free. Layer: files (psutil, no llama_cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from racer_local.config import DEFAULT_N_CTX, KvType, ModelConfig, choose_n_ctx
from racer_local.errors import ModelLoadError
from racer_local.gguf.header import inspect_gguf
from racer_local.gguf.info import GgufInfo
from racer_local.gguf.reader import Scalar
from racer_local.hardware.native_check import gpu_backends
from racer_local.wording import quoted

__all__ = [
    "MemoryEstimate",
    "available_bytes",
    "context_size",
    "estimate_memory",
    "expected_kv_type",
    "has_own_gpu_memory",
    "largest_context",
    "require_memory",
]

# Elements of a head that q8_0 stores together.
_KV_BLOCK = 32
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


def expected_kv_type(info: GgufInfo, config: ModelConfig) -> KvType:
    """Return the element type that the KV cache will have; see ``ModelConfig.kv_type``."""
    if config.kv_type is not None:
        return config.kv_type
    if config.exact:
        return "q8_0"
    if _uses_gpu(config) and gpu_backends():
        return "f16"
    keys, values = _head_sizes(_Counts(info.metadata, info.arch))
    return "f16" if keys % _KV_BLOCK or values % _KV_BLOCK else "q8_0"


def _uses_gpu(config: ModelConfig) -> bool:
    return config.device != "cpu" and config.n_gpu_layers != 0


def has_own_gpu_memory(config: ModelConfig) -> bool:
    """Whether a part of the model would lie on a card whose memory is not the processor's."""
    return _uses_gpu(config) and bool(gpu_backends() - {"metal"})


def estimate_memory(info: GgufInfo, n_ctx: int, kv_type: KvType) -> MemoryEstimate:
    """Estimate what a model with a context of ``n_ctx`` tokens needs."""
    count = _Counts(info.metadata, info.arch)
    n_embd = count.of("embedding_length", 0)
    n_head = count.of("attention.head_count", 0)
    # Given layer by layer it is not kept; then every layer counts as if it had all heads.
    n_head_kv = count.of("attention.head_count_kv", n_head)
    elements = count.of("block_count", 0) * n_head_kv * sum(_head_sizes(count))
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


def _head_sizes(count: _Counts) -> tuple[int, int]:
    """Return the elements of a head's key and value."""
    n_head = count.of("attention.head_count", 0)
    head = count.of("embedding_length", 0) // n_head if n_head else 0
    return count.of("attention.key_length", head), count.of("attention.value_length", head)


def largest_context(info: GgufInfo, free_bytes: int, kv_type: KvType) -> int:
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


def require_memory(
    config: ModelConfig, free_bytes: int | None = None, gpu_bytes: int | None = None
) -> None:
    """Refuse a model that would make the machine swap or kill the program.

    Args:
        config: what is about to be opened.
        free_bytes: memory to be had; None looks.
        gpu_bytes: memory to be had on cards that have their own; None is not known.

    Raises:
        ModelLoadError: it does not fit; with the figures and what would fit. Also for a file that
            is no sound model.
    """
    info = inspect_gguf(config.path)
    kv_type = expected_kv_type(info, config)
    estimate = estimate_memory(info, context_size(info, config.n_ctx), kv_type)
    name = quoted(config.path.name)
    if has_own_gpu_memory(config):
        # What a part of the layers needs is llama.cpp's business.
        takes_all = config.n_gpu_layers in (None, -1)
        needed = estimate.weights + estimate.context
        if takes_all and gpu_bytes is not None and needed > gpu_bytes:
            raise ModelLoadError(
                f"{name} needs {estimate.describe()}, but {gpu_bytes / 1e9:.1f} GB are free on the "
                "graphics card; put fewer layers there (--gpu-layers), take a smaller context "
                "(--ctx), or --device cpu; --no-memory-check tries all the same"
            )
        return
    free = available_bytes() if free_bytes is None else free_bytes
    if estimate.total <= free:
        return
    fitting = largest_context(info, free, kv_type)
    advice = (
        f"a context of {fitting:,} tokens would fit (--ctx {fitting})"
        if 0 < fitting < estimate.n_ctx
        else "take a smaller quantization or a smaller model, or close other programs"
    )
    raise ModelLoadError(
        f"{name} needs {estimate.describe()}, but {free / 1e9:.1f} GB are "
        f"free; {advice}; --no-memory-check tries all the same"
    )
