"""Writes llama.cpp batches whose tokens belong to many sequences."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from racer_local.backend.layout import TreeLayout
from racer_local.speculation.tree import DraftTree, TokenId

__all__ = ["BatchWriter"]


class BatchWriter:
    """One reusable batch over NumPy arrays that it owns.

    Sequence ids are intervals, so every token's id list is a slice of one array 0, 1, 2, ...;
    a token needs a pointer and a count, and nothing is copied.
    """

    def __init__(self, capacity: int, n_seq: int, n_vocab: int) -> None:
        """Allocate room for ``capacity`` tokens of ids below ``n_vocab`` in ``n_seq`` sequences."""
        self._n_seq = n_seq
        self._n_vocab = n_vocab
        self.capacity = capacity
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._n_ids = np.zeros(capacity, np.int32)
        self._id_pointers = np.zeros(capacity, np.uintp)
        self._wants_logits = np.zeros(capacity, np.int8)
        self._ids = np.arange(n_seq, dtype=np.int32)
        self._ids_address = self._ids.ctypes.data
        batch = llama_cpp.llama_batch()
        batch.token = self._pointer(self._tokens, ctypes.c_int32)
        batch.pos = self._pointer(self._positions, ctypes.c_int32)
        batch.n_seq_id = self._pointer(self._n_ids, ctypes.c_int32)
        batch.seq_id = self._pointer(self._id_pointers, ctypes.POINTER(ctypes.c_int32))
        batch.logits = self._pointer(self._wants_logits, ctypes.c_int8)
        self.batch = batch

    @staticmethod
    def _pointer(array: NDArray[np.generic], element: type) -> object:
        return ctypes.cast(array.ctypes.data, ctypes.POINTER(element))

    def write_prompt(
        self, tokens: Sequence[TokenId], n_past: int, wanted: Sequence[int] | NDArray[np.int32]
    ) -> None:
        """Fill the batch with text that joins all sequences.

        Args:
            tokens: at most ``capacity`` token ids.
            n_past: position of the first.
            wanted: places in ``tokens`` whose logits are read.

        Raises:
            ValueError: a token is outside the vocabulary, or there are too many or none.
        """
        n = self._begin(len(tokens))
        self._tokens[:n] = tokens
        self._positions[:n] = np.arange(n_past, n_past + n, dtype=np.int32)
        self._n_ids[:n] = self._n_seq
        self._id_pointers[:n] = self._ids_address
        self._wants_logits[:n] = 0
        self._wants_logits[np.asarray(wanted, np.int64)] = 1
        self._check_vocabulary(n)

    def write_token(self, token: TokenId, position: int) -> None:
        """Fill the batch with one token of all sequences, whose logits are read.

        Raises:
            ValueError: the token is outside the vocabulary.
        """
        if not 0 <= token < self._n_vocab:
            raise ValueError(f"a token id is outside the vocabulary of {self._n_vocab}")
        self.batch.n_tokens = 1
        self._tokens[0] = token
        self._positions[0] = position
        self._n_ids[0] = self._n_seq
        self._id_pointers[0] = self._ids_address
        self._wants_logits[0] = 1

    def write_tree(self, tree: DraftTree, layout: TreeLayout, n_past: int) -> None:
        """Fill the batch with a draft tree; the logits of every row are read.

        Raises:
            ValueError: a token is outside the vocabulary, or the tree is too large.
        """
        n = self._begin(len(layout.nodes))
        self._tokens[:n] = [tree.tokens[node] for node in layout.nodes]
        self._positions[:n] = layout.depths
        self._positions[:n] += n_past
        self._n_ids[:n] = layout.n_ids
        self._id_pointers[:n] = layout.first_ids
        self._id_pointers[:n] *= self._ids.itemsize
        self._id_pointers[:n] += self._ids_address
        self._wants_logits[:n] = 1
        self._check_vocabulary(n)

    def _begin(self, n: int) -> int:
        # llama.cpp aborts the process on a batch larger than the context was made for.
        if not 0 < n <= self.capacity:
            raise ValueError(f"a batch of {n} tokens; it must have 1 to {self.capacity}")
        self.batch.n_tokens = n
        return n

    def _check_vocabulary(self, n: int) -> None:
        tokens = self._tokens[:n]
        if int(tokens.min()) < 0 or int(tokens.max()) >= self._n_vocab:
            raise ValueError(f"a token id is outside the vocabulary of {self._n_vocab}")
