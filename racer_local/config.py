"""Every setting and its default, in one place. Layer: pure (standard library only).

Command line, server and UI read their defaults from here. A setting out of range raises
``ConfigError`` with the value and the legal interval.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from racer_local.errors import ConfigError

__all__ = [
    "AUTO_LEAVES",
    "DEFAULT_N_CTX",
    "MAX_LEAVES",
    "Device",
    "DraftConfig",
    "DraftMemory",
    "DraftMode",
    "GenerationConfig",
    "KvType",
    "ModelConfig",
    "PenaltyConfig",
    "SamplingConfig",
    "choose_n_ctx",
]

Device: TypeAlias = Literal["auto", "cpu", "metal", "cuda", "vulkan"]
DraftMode: TypeAlias = Literal["auto", "racer", "retrieval", "logits", "last-logit", "pld", "off"]
KvType: TypeAlias = Literal["f16", "q8_0", "f32"]
DraftMemory: TypeAlias = Literal["off", "conversation", "server"]

# llama.cpp's own LLAMA_MAX_SEQ is 256; one sequence id is kept free as scratch space.
MAX_LEAVES = 255
# Branches of a draft tree that `auto` makes at most. In replay it loses nothing by that on any
# curve, and every branch is a sequence that llama.cpp keeps account of at every step: 16 instead
# of 64 make a plain step of a small model 2 % faster.
AUTO_LEAVES = 16
# Tokens of context where nothing is asked for and the model was trained for as many.
DEFAULT_N_CTX = 4096


def _require(ok: bool, name: str, value: object, legal: str) -> None:
    if not ok:
        raise ConfigError(f"{name} is {value!r}; it must be {legal}")


def _require_int(name: str, value: object, low: int, high: int) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    _require(is_int and low <= value <= high, name, value, f"a whole number from {low} to {high}")  # type: ignore[operator]  # checked by is_int


def _require_float(name: str, value: object, low: float, high: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    ok = is_number and math.isfinite(value) and low <= value <= high  # type: ignore[arg-type,operator]  # checked by is_number
    _require(ok, name, value, f"a number from {low:g} to {high:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """How tokens are drafted.

    Attributes:
        mode: which drafter; ``auto`` drafts what pays, ``off`` is plain decoding.
        budget: most draft nodes in one step, the root not counted; ``auto`` seldom takes all.
        max_match: longest n-gram the retrieval automaton keeps (its depth).
        min_match: shortest suffix of the text that may be continued from.
        breadth: children of the root of the logits tree; their own widths halve from there.
        max_nodes: nodes of the retrieval automaton before the least recently used are evicted.
        memory: what may be drafted from: the request's own text (``off``), also what was learned
            in the conversation that it continues, or everything since the start (``server``).

    Source: defaults of the RACER paper (arXiv 2604.14885): 64 nodes, n-gram 10, breadth 8,
    10,000 nodes.
    """

    mode: DraftMode = "auto"
    budget: int = 64
    max_match: int = 10
    min_match: int = 2
    breadth: int = 8
    max_nodes: int = 10_000
    memory: DraftMemory = "conversation"

    def __post_init__(self) -> None:
        """Check every field."""
        modes = get_args(DraftMode)
        memories = get_args(DraftMemory)
        _require(
            self.memory in memories, "draft memory", self.memory, "one of " + ", ".join(memories)
        )
        _require(self.mode in modes, "draft mode", self.mode, "one of " + ", ".join(modes))
        _require_int("draft budget", self.budget, 0, MAX_LEAVES)
        _require_int("max_match", self.max_match, 1, 64)
        _require_int("min_match", self.min_match, 1, self.max_match)
        _require_int("breadth", self.breadth, 1, 64)
        _require_int("max_nodes", self.max_nodes, self.max_match, 10_000_000)

    @property
    def max_leaves(self) -> int:
        """Most branches that a tree of this drafter can have."""
        most = {"off": 1, "pld": 1, "auto": AUTO_LEAVES}.get(self.mode, MAX_LEAVES)
        return max(1, min(self.budget, most))


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyConfig:
    """What makes recent tokens less likely; the same names and meanings as in llama.cpp.

    Attributes:
        repeat_penalty: divide the logits of recent tokens; 1 is off.
        presence_penalty: subtract once from the logit of each recent token; 0 is off.
        frequency_penalty: subtract once for each recent occurrence; 0 is off.
        penalty_last_n: how many tokens count as recent; -1 is the whole context.
    """

    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int = 64

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty looks at the tokens before."""
        return self.penalty_last_n != 0 and (
            self.repeat_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig(PenaltyConfig):
    """How the target's next token is chosen; the same names and meanings as in llama.cpp.

    Attributes:
        temperature: 0 picks the likeliest token; above 0 samples.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set with this much probability; 1 keeps all.
        min_p: drop tokens below this share of the likeliest one's probability; 0 keeps all.
        logit_bias: added to the logits of these token ids.
        seed: of the random generator; None takes a fresh one for each request.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        _require_float("temperature", self.temperature, 0.0, 100.0)
        _require_int("top-k", self.top_k, 0, 2**31 - 1)
        _require_float("top-p", self.top_p, 0.0, 1.0)
        _require_float("min-p", self.min_p, 0.0, 1.0)
        _require_float("repeat penalty", self.repeat_penalty, 0.01, 100.0)
        _require_float("presence penalty", self.presence_penalty, -100.0, 100.0)
        _require_float("frequency penalty", self.frequency_penalty, -100.0, 100.0)
        _require_int("penalty window", self.penalty_last_n, -1, 2**20)
        for token, bias in self.logit_bias.items():
            _require_int("a biased token id", token, 0, 2**31 - 1)
            _require_float("a logit bias", bias, -1e6, 1e6)
        if self.seed is not None:
            _require_int("seed", self.seed, 0, 2**32 - 2)

    @property
    def is_argmax(self) -> bool:
        """Whether the next token is simply the largest raw logit."""
        return self.temperature == 0.0 and not self.has_penalties and not self.logit_bias


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """When a generation ends.

    Attributes:
        max_tokens: most tokens to generate; None goes on to the end of the context.
        stop: strings that end the answer and are not part of it.
        ignore_eos: go on after an end-of-generation token (for benchmarks).
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        if self.max_tokens is not None:
            _require_int("max tokens", self.max_tokens, 1, 2**31 - 1)
        _require(
            all(isinstance(s, str) and s for s in self.stop), "stop", self.stop, "non-empty strings"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """How a model is opened.

    Attributes:
        path: the GGUF file; of a split model, its first part.
        n_ctx: context size in tokens; 0 takes the size the model was trained with; None takes
            that or 4,096, whichever is smaller.
        n_threads: threads for decoding; None takes the physical cores.
        n_threads_batch: threads for the prompt; None takes ``n_threads``.
        device: ``cpu`` keeps everything off the GPU; a GPU's name insists on one; ``auto`` takes
            a GPU where llama.cpp was built for it.
        n_gpu_layers: layers on the GPU; None or -1 offloads all.
        n_batch: most tokens evaluated in one call while reading the prompt.
        max_nodes: most draft nodes in one step.
        max_leaves: most branches of one draft tree; a larger one loses those added last. Each
            costs a little at every step. The default is enough for ``auto``; large trees of other
            modes have more (``DraftConfig.max_leaves``).
        kv_type: element type of the KV cache, by its ggml name. None takes q8_0 on a processor
            (faster there than f16, above all in long contexts, and what exactness needs) and f16
            on a GPU, or where the model's shape does not allow q8_0.
        exact: be token-identical to plain decoding with the same settings. Takes a q8_0 cache
            and only trees whose rows were found bit-identical to single ones on this machine.
        prefix_bytes: memory for saved texts, so that a side question does not evict a chat; 0 is
            off.
        max_prefixes: most texts saved.
    """

    path: Path
    n_ctx: int | None = None
    n_threads: int | None = None
    n_threads_batch: int | None = None
    device: Device = "auto"
    n_gpu_layers: int | None = None
    n_batch: int = 512
    max_nodes: int = 64
    max_leaves: int = AUTO_LEAVES
    kv_type: KvType | None = None
    exact: bool = False
    prefix_bytes: int = 512 * 2**20
    max_prefixes: int = 4

    def __post_init__(self) -> None:
        """Check every field."""
        if self.n_ctx is not None:
            _require_int("context size", self.n_ctx, 0, 2**24)
        for name, threads in (("threads", self.n_threads), ("batch threads", self.n_threads_batch)):
            if threads is not None:
                _require_int(name, threads, 1, 512)
        devices = get_args(Device)
        _require(self.device in devices, "device", self.device, "one of " + ", ".join(devices))
        if self.n_gpu_layers is not None:
            _require_int("GPU layers", self.n_gpu_layers, -1, 2**20)
        _require_int("batch size", self.n_batch, 1, 2**16)
        _require_int("max nodes", self.max_nodes, 0, MAX_LEAVES)
        _require_int("max leaves", self.max_leaves, 1, MAX_LEAVES)
        if self.kv_type is not None:
            known = get_args(KvType)
            _require(self.kv_type in known, "KV type", self.kv_type, "one of " + ", ".join(known))
        _require(isinstance(self.exact, bool), "exact", self.exact, "True or False")
        if self.exact and self.kv_type not in (None, "q8_0"):
            raise ConfigError(
                f"exact decoding needs a q8_0 KV cache, and {self.kv_type} was asked for: with it "
                "llama.cpp computes single tokens in another way than several; leave the KV type "
                "out, or decode without exact"
            )
        _require_int("prefix memory", self.prefix_bytes, 0, 2**48)
        _require_int("prefixes", self.max_prefixes, 0, 1024)
        os.fspath(self.path)


def choose_n_ctx(asked: int | None, n_train: int) -> int:
    """Return the tokens of context that a setting leads to; see ``ModelConfig.n_ctx``.

    Args:
        asked: the setting.
        n_train: tokens the model was trained for; 0 where that is not known.
    """
    if asked is None:
        return min(DEFAULT_N_CTX, n_train) if n_train > 0 else DEFAULT_N_CTX
    return asked or n_train or DEFAULT_N_CTX
