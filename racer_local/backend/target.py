"""The target model: one llama.cpp context, which evaluates prompts and draft trees."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from racer_local.backend.batch import BatchWriter
from racer_local.backend.kv import KV_TYPES, KvCache
from racer_local.backend.layout import TreeLayout, lay_out
from racer_local.backend.model import LlamaModel
from racer_local.backend.native import (
    AbortFlag,
    clear_native_errors,
    last_native_error,
    physical_cores,
)
from racer_local.backend.sampler import Sampler
from racer_local.backend.slot import TextSlot
from racer_local.config import KvType, ModelConfig, SamplingConfig, choose_n_ctx
from racer_local.errors import DecodeError, ModelLoadError, UnsupportedModelError
from racer_local.speculation.tree import ROOT, DraftTree, TokenId

__all__ = ["LlamaTarget", "prompt_rows"]

_MAX_UBATCH = 512
# Logits of a prompt chunk; more rows than fit are read from its end.
_PROMPT_LOGITS_BYTES = 64 * 2**20
_FLASH_ATTN_ON = 1
_FLASH_ATTN_AUTO = -1


def _either(kv_type: KvType) -> list[tuple[KvType, int]]:
    # Some devices have no flash attention for some head sizes.
    return [(kv_type, _FLASH_ATTN_ON), (kv_type, _FLASH_ATTN_AUTO)]


def prompt_rows(n_batch: int, n_vocab: int) -> int:
    """Return how many rows of a prompt chunk are read at most."""
    return max(1, min(n_batch, _PROMPT_LOGITS_BYTES // (4 * n_vocab)))


class LlamaTarget(TextSlot):
    """A context with one unified KV cache for many sequence ids, all of them its one slot's.

    Not safe for use by two threads at once, but for ``stop``. See ``Target`` for the methods.

    Attributes:
        kv_type: element type of the KV cache.
        notices: what the user should know about this model and these settings.
    """

    def __init__(self, model: LlamaModel, config: ModelConfig) -> None:
        """Open a context on ``model`` and probe what it can do.

        Raises:
            ModelLoadError: llama.cpp could not open the context (most often: no memory).
            UnsupportedModelError: exactness was asked for, which the model's shape rules out.
        """
        super().__init__()
        self.model = model
        self.notices: list[str] = []
        # Position in the batch per row of logits; None where every position has a row.
        self._row_places: NDArray[np.int64] | None = None
        self._n_rows = 0
        self._logits = np.empty((0, model.n_vocab), np.float32)
        self._logits_address = 0
        self.max_states = config.max_prefixes if config.prefix_bytes else 0
        self.max_state_bytes = config.prefix_bytes
        self.n_vocab = model.n_vocab
        self.n_ctx = self._choose_n_ctx(config)
        reason = model.cannot_branch_because
        self.can_rewind = reason is None
        self.max_nodes = 0 if reason else config.max_nodes
        self.max_leaves = 1 if reason else config.max_leaves
        self.is_exact = config.exact
        self.n_batch = min(config.n_batch, max(self.n_ctx, 1))
        self._abort = AbortFlag()
        self._close: weakref.finalize[..., LlamaTarget] | None = None
        try:
            self._open(config)
            if self.max_nodes and not self._probe_rollback():
                reason = "llama.cpp cannot take back part of what this model has read"
                self.can_rewind = False
                self.max_nodes = 0
                self.max_leaves = 1
                self.close()
                self._open(config)
        except BaseException:
            self.close()
            raise
        if reason and config.max_nodes:
            self.notices.append(f"drafting is off: {reason}")

    def _choose_n_ctx(self, config: ModelConfig) -> int:
        n_train = self.model.n_ctx_train
        n_ctx = choose_n_ctx(config.n_ctx, n_train)
        if 0 < n_train < n_ctx:
            self.notices.append(
                f"the context of {n_ctx} tokens is longer than the {n_train} this model "
                "was trained with; expect poor text beyond that"
            )
        return n_ctx

    def _kv_choices(self, config: ModelConfig) -> list[tuple[KvType, int]]:
        """List KV types with kinds of flash attention, the best one first."""
        kv_type = config.kv_type
        if kv_type is None and (self.model.is_on_cpu or config.exact):
            # Not for all shapes: rows of a head have to be a multiple of 32.
            quantized: list[tuple[KvType, int]] = [("q8_0", _FLASH_ATTN_ON)]
            return quantized if config.exact else [*quantized, *_either("f16")]
        return _either(kv_type or "f16")

    def _open(self, config: ModelConfig) -> None:
        self.max_prompt_rows = prompt_rows(self.n_batch, self.n_vocab)
        n_outputs = max(self.max_prompt_rows, self.max_nodes + 1, self.max_leaves + 1)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self.n_ctx
        params.n_batch = max(self.n_batch, n_outputs)
        params.n_ubatch = min(params.n_batch, max(_MAX_UBATCH, n_outputs))
        # One more than branches: scratch space for closing gaps.
        params.n_seq_max = self.max_leaves + (1 if self.max_nodes else 0)
        params.n_outputs_max = n_outputs
        params.n_threads = config.n_threads or physical_cores()
        params.n_threads_batch = config.n_threads_batch or params.n_threads
        params.offload_kqv = params.op_offload = config.device != "cpu"
        params.kv_unified = True
        params.swa_full = True
        params.no_perf = True
        clear_native_errors()
        for kv_type, flash_attention in self._kv_choices(config):
            self.kv_type: KvType = kv_type
            params.type_k = params.type_v = KV_TYPES[kv_type]
            params.flash_attn_type = flash_attention
            handle = llama_cpp.llama_init_from_model(self.model.handle, params)
            if handle:
                break
        if not handle and config.exact:
            detail = last_native_error() or "no reason given"
            raise UnsupportedModelError(
                "exact decoding needs a q8_0 KV cache and flash attention, and llama.cpp cannot "
                f"open this model with them: {detail}; decode without exact"
            )
        if not handle:
            detail = last_native_error() or "no reason given"
            raise ModelLoadError(
                f"llama.cpp could not open a context of {self.n_ctx} tokens: {detail}; "
                "a smaller context (--ctx) needs less memory"
            )
        self._attach(handle, weakref.finalize(self, llama_cpp.llama_free, handle))

    def _attach(self, handle: object, close: weakref.finalize[..., LlamaTarget]) -> None:
        """Take an open context, and what closes it; the model closes it before itself."""
        self.model.add_context(close)
        self._ctx = handle
        self._close = close
        self._kv = KvCache(handle, self.max_leaves)
        self._abort.attach(handle)
        self.n_threads: int = llama_cpp.llama_n_threads(handle)
        n_batch = llama_cpp.llama_n_batch(handle)
        self._batch = BatchWriter(n_batch, self.max_leaves, self.n_vocab)

    def _probe_rollback(self) -> bool:
        """Read two tokens and take one back; also warms the weights up."""
        token = self.model.bos if self.model.bos is not None else 0
        self._batch.write_prompt([token, token], 0, [])
        self._run()
        ok = self._kv.remove(1) and self._kv.all_end_at(0)
        self.clear()
        return ok

    @property
    def is_closed(self) -> bool:
        """Whether the context has been freed."""
        return self._close is None or not self._close.alive

    def _run(self) -> None:
        """Evaluate the batch; its cells join the KV cache.

        Raises:
            DecodeError: naming the return code; the cache may hold part of the batch.
        """
        clear_native_errors()
        rc = llama_cpp.llama_decode(self._ctx, self._batch.batch)
        if rc != 0:
            raise DecodeError(rc, last_native_error())
        # Computation may still run on a GPU; logits are read through a plain pointer.
        llama_cpp.llama_synchronize(self._ctx)

    def logits(self) -> NDArray[np.float32]:
        """Return float32 [n_rows, n_vocab] of the latest decode: a view, valid until the next."""
        if self._n_rows == 0:
            return np.empty((0, self.n_vocab), np.float32)
        pointer = llama_cpp.llama_get_logits(self._ctx)
        if not pointer:
            raise DecodeError(-3, "llama.cpp returned no logits")
        address = ctypes.addressof(pointer.contents)
        # Making a view costs more than all else here, and llama.cpp seldom moves its buffer.
        if address != self._logits_address or self._n_rows > len(self._logits):
            buffer = (ctypes.c_float * (self._n_rows * self.n_vocab)).from_address(address)
            self._logits = np.ctypeslib.as_array(buffer).reshape(self._n_rows, self.n_vocab)
            self._logits_address = address
        return self._logits[: self._n_rows]

    def prefill(
        self, tokens: Sequence[TokenId], wanted: Sequence[int] | NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Append at most ``n_batch`` tokens of given text; see ``Target.prefill``."""
        self._require_open()
        self._batch.write_prompt(tokens, len(self.tokens), wanted)
        self._n_rows = 0
        self._is_dirty = True
        try:
            self._run()
        except BaseException:
            self.rewind(len(self.tokens))
            raise
        self.tokens.extend(tokens)
        self._is_dirty = False
        self._row_places = np.asarray(wanted, np.int64)
        self._n_rows = len(wanted)
        return self.logits()

    def decode_tree(self, tree: DraftTree) -> TreeLayout:
        """Evaluate a draft tree after the text; see ``Target.decode_tree``."""
        self._require_open()
        layout = lay_out(tree, self.max_leaves)
        # Most steps of a machine on which drafts seldom pay: half the work outside llama.cpp.
        if len(tree) == 1:
            self._batch.write_token(tree.tokens[ROOT], len(self.tokens))
        else:
            self._batch.write_tree(tree, layout, len(self.tokens))
        self._n_rows = 0
        self._is_dirty = True
        try:
            self._run()
        except BaseException:
            self.rewind(len(self.tokens))
            raise
        self._tree, self._layout = tree, layout
        self._row_places = None
        self._n_rows = len(layout.nodes)
        return layout

    def load_state(self, tokens: Sequence[TokenId], state: bytes | bytearray) -> bool:
        """Put a text and its saved state in place of what the cache holds.

        Returns:
            False if llama.cpp refuses the state: the cache is empty then.
        """
        self._n_rows = 0
        return super().load_state(tokens, state)

    def limit_nodes(self, max_nodes: int) -> None:
        """Take smaller trees from now on."""
        self.max_nodes = min(self.max_nodes, max_nodes)

    @property
    def cpu_bytes(self) -> int:
        """Weights that the processor reads for every token; 0 where a GPU does."""
        return self.model.weights_bytes if self.model.is_on_cpu else 0

    def multiply_cells(self, n_copies: int) -> None:
        """Make the context look long for measurements; see ``KvCache.multiply``."""
        self._require_open()
        self._kv.multiply(n_copies)

    def sampler(self, config: SamplingConfig) -> _BoundSampler:
        """Make the sampler of one request."""
        self._require_open()
        return _BoundSampler(self, Sampler(config, self.n_vocab, self.n_ctx))

    def is_end(self, token: TokenId) -> bool:
        """Whether this token ends a generation."""
        return self.model.is_end(token)

    def stop(self) -> None:
        """End the running decode soon; may be called from any thread."""
        self._abort.raise_()

    def resume(self) -> None:
        """Allow decoding again."""
        self._abort.lower()

    @property
    def is_stopped(self) -> bool:
        """Whether a stop is in force."""
        return self._abort.is_raised

    def close(self) -> None:
        """Free the context; a second call does nothing."""
        if self._close is not None:
            self._close()


class _BoundSampler:
    """A sampler reading the rows of its target's latest decode."""

    def __init__(self, target: LlamaTarget, sampler: Sampler) -> None:
        self._target = target
        self._sampler = sampler

    @property
    def seed(self) -> int:
        return self._sampler.seed

    def sample(self, row: int) -> TokenId:
        target = self._target
        places = target._row_places
        place = row if places is None else int(places[row])
        return self._sampler.sample(target._ctx, place, target.logits()[row])

    def close(self) -> None:
        self._sampler.close()
