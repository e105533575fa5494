"""The KV cache's bookkeeping: which sequences hold which cells, and in what order."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp

from racer_local.backend.layout import KvEdit, RemoveIds
from racer_local.config import KvType
from racer_local.errors import DecodeError

__all__ = ["KV_TYPES", "KvCache"]

# ggml's numbers of the element types.
KV_TYPES: dict[KvType, int] = {
    "f32": llama_cpp.GGML_TYPE_F32,
    "f16": llama_cpp.GGML_TYPE_F16,
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
}

_EVERY = -1


class KvCache:
    """The cells of one context. Sequences 0 to ``n_seq`` - 1 hold the text; one more is scratch."""

    def __init__(self, ctx: object, n_seq: int) -> None:
        """Manage the cache of ``ctx``, which was opened for ``n_seq`` + 1 sequences."""
        self._ctx = ctx
        self._memory = llama_cpp.llama_get_memory(ctx)
        self._n_seq = n_seq
        self._buffer = (ctypes.c_uint8 * 0)()

    def apply(self, edits: Sequence[KvEdit]) -> None:
        """Carry out the edits of a commit.

        Raises:
            DecodeError: llama.cpp cannot take part of a sequence back.
        """
        for edit in edits:
            if isinstance(edit, RemoveIds):
                if not self.remove(edit.start, edit.end, edit.seq):
                    raise DecodeError(-3, "llama.cpp refused to remove part of a sequence")
            else:
                self._copy(edit.source, edit.target, edit.start, edit.end)

    def remove(self, start: int, end: int = -1, seq: int = _EVERY) -> bool:
        """Take the cells at positions [start, end) off a sequence; False where it is refused."""
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, seq, start, end))

    def _copy(self, source: int, target: int, start: int, end: int) -> None:
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, start, end)

    def close_gap(self, source: int, start: int, end: int) -> None:
        """Move the cells of ``source`` at [start, end) up behind those before them.

        A side branch that won lies behind the cells of a branch that lost. Left there, later
        tokens would fill the gap, cells would be out of position order, and attention would sum
        in another order than plain decoding: logits of a small model move by up to about 1. The
        cells leave through the state of the scratch sequence and come back into the gap. Every
        sequence has them afterwards.

        Raises:
            DecodeError: llama.cpp could not save or restore them; the text must be rewound.
        """
        scratch = self._n_seq
        self._copy(source, scratch, start, end)
        size = llama_cpp.llama_state_seq_get_size(self._ctx, scratch)
        if len(self._buffer) < size:
            self._buffer = (ctypes.c_uint8 * (2 * size))()
        n = llama_cpp.llama_state_seq_get_data(self._ctx, self._buffer, size, scratch)
        if n == 0 or not self.remove(start):
            raise DecodeError(-3, "llama.cpp could not save the cells of a branch")
        if llama_cpp.llama_state_seq_set_data(self._ctx, self._buffer, n, scratch) == 0:
            raise DecodeError(-3, "llama.cpp could not restore the cells of a branch")
        for seq in range(self._n_seq):
            self._copy(scratch, seq, start, end)
        self.remove(0, -1, scratch)

    def multiply(self, n_copies: int) -> None:
        """Add copies of all cells of sequence 0, at the same positions, to every sequence.

        Attention then works on a long context that nobody had to compute: good for measuring,
        not for text. Only ``clear`` makes a text of it again.

        Raises:
            DecodeError: llama.cpp could not save or restore the cells.
        """
        scratch = self._n_seq
        saved = self.save()
        if not saved:
            raise DecodeError(-3, "llama.cpp could not save cells")
        buffer = (ctypes.c_uint8 * len(saved)).from_buffer(saved)
        for _ in range(n_copies):
            if llama_cpp.llama_state_seq_set_data(self._ctx, buffer, len(saved), scratch) == 0:
                raise DecodeError(-3, "llama.cpp could not restore cells")
            for seq in range(self._n_seq):
                self._copy(scratch, seq, 0, -1)
            self.remove(0, -1, scratch)

    def state_bytes(self) -> int:
        """Return how large a saved copy of the text's cells would be."""
        return int(llama_cpp.llama_state_seq_get_size(self._ctx, 0))

    def save(self) -> bytearray:
        """Copy out the cells of the text; empty where llama.cpp cannot."""
        state = bytearray(self.state_bytes())
        buffer = (ctypes.c_uint8 * len(state)).from_buffer(state)
        n = llama_cpp.llama_state_seq_get_data(self._ctx, buffer, len(state), 0)
        return state if n == len(state) else state[:n]

    def load(self, state: bytes | bytearray) -> bool:
        """Fill an empty cache with saved cells, for all sequences; False where it is refused."""
        whole = bytearray(state) if isinstance(state, bytes) else state
        buffer = (ctypes.c_uint8 * len(whole)).from_buffer(whole)
        n = llama_cpp.llama_state_seq_set_data(self._ctx, buffer, len(whole), 0)
        if n != len(whole):
            return False
        for seq in range(1, self._n_seq):
            self._copy(0, seq, 0, _EVERY)
        return True

    def clear(self) -> None:
        """Empty the cache."""
        llama_cpp.llama_memory_clear(self._memory, False)

    def all_begin_at_zero(self) -> bool:
        """Whether no sequence that holds the text has lost its beginning."""
        return all(first == 0 for first, _ in self.positions())

    def all_end_at(self, position: int) -> bool:
        """Whether this is the last position of every sequence that holds the text."""
        return all(last == position for _, last in self.positions())

    def positions(self) -> list[tuple[int, int]]:
        """Return the first and last position of every sequence of the text; (-1, -1) is empty."""
        return [
            (
                llama_cpp.llama_memory_seq_pos_min(self._memory, seq),
                llama_cpp.llama_memory_seq_pos_max(self._memory, seq),
            )
            for seq in range(self._n_seq)
        ]
