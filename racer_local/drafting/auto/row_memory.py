"""Copy-Logit rows that a model gave to other texts: guesses where this text has none. Layer: pure.

Rows are keyed by two tokens, and by one for places where the two were never seen. They are
compact arrays, sorted by key and searched by bisection. A file of them is a NumPy ``.npz`` without
pickle, bound to a model by a fingerprint, checked as a whole when it is read, capped in size, and
written in one stroke with access for its owner only.

| array | type and shape | meaning |
| --- | --- | --- |
| version | int32 [] | 1 |
| fingerprint | str [] | which model (and tokenizer) gave the rows |
| keys | int64 [n], rising | ``(before + 1) << 32 | token``; ``before`` is -1 for one token |
| counts | int32 [n] | how often the key was seen; rare ones go first when there are too many |
| ids | int32 [n, k] | the likeliest next tokens |
| probs | float16 [n, k] | their probabilities |
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from racer_local.drafting.racer.copy_logit import Row, pair_key
from racer_local.errors import ConfigError
from racer_local.speculation.tree import TokenId
from racer_local.storage.arrays_file import read_arrays, write_arrays

__all__ = ["RowMemory"]

_VERSION = 1
_WIDTH = 8
# 64 bytes each with 8 tokens a row.
MAX_ROWS = 65_536
_WHAT = "row memory"
# Larger files are not ours, packed or unpacked.
_MAX_FILE_BYTES = 64 * 1024 * 1024
_KINDS = {
    "version": ("i", 0),
    "fingerprint": ("U", 0),
    "keys": ("i", 1),
    "counts": ("i", 1),
    "ids": ("i", 2),
    "probs": ("f", 2),
}


class RowMemory:
    """Rows of other texts, at most ``max_rows``.

    Attributes:
        fingerprint: which model they are of.
    """

    __slots__ = ("_counts", "_ids", "_keys", "_max_rows", "_probs", "fingerprint")

    def __init__(self, fingerprint: str, max_rows: int = MAX_ROWS) -> None:
        """Start without rows.

        Raises:
            ConfigError: if there is no room for a row.
        """
        if max_rows < 1:
            raise ConfigError(f"a row memory has room for {max_rows} rows; it needs at least 1")
        self.fingerprint = fingerprint
        self._max_rows = max_rows
        self._keys = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int32)
        self._ids = np.zeros((0, _WIDTH), np.int32)
        self._probs = np.zeros((0, _WIDTH), np.float16)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._keys)

    def fill(
        self, tokens: NDArray[np.int32], ids: NDArray[np.int32], probs: NDArray[np.float32]
    ) -> None:
        """Add the rows of one text; of equal keys the latest stays.

        Args:
            tokens: int32 [n], the text.
            ids: int32 [n, k], the likeliest tokens after each place; the first 8 are kept.
            probs: float [n, k].

        Raises:
            ValueError: if the shapes do not fit together.
        """
        if ids.shape != probs.shape or ids.ndim != 2 or len(ids) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens with rows {ids.shape} and {probs.shape}")
        if not len(tokens):
            return
        width = min(_WIDTH, ids.shape[1])
        new_ids = np.zeros((len(tokens), _WIDTH), np.int32)
        new_probs = np.zeros((len(tokens), _WIDTH), np.float16)
        new_ids[:, :width] = ids[:, :width]
        new_probs[:, :width] = probs[:, :width]
        last = tokens.astype(np.int64)
        both = last[1:] | (last[:-1] + 1) << 32
        self._merge(
            np.concatenate([last, both]),
            np.concatenate([new_ids, new_ids[1:]]),
            np.concatenate([new_probs, new_probs[1:]]),
        )

    def _merge(
        self, keys: NDArray[np.int64], ids: NDArray[np.int32], probs: NDArray[np.float16]
    ) -> None:
        all_keys = np.concatenate([self._keys, keys])
        counts = np.concatenate([self._counts, np.ones(len(keys), np.int32)])
        unique, from_end, inverse = np.unique(
            all_keys[::-1], return_index=True, return_inverse=True
        )
        places = len(all_keys) - 1 - from_end
        totals = np.bincount(inverse.reshape(-1), weights=counts[::-1]).astype(np.int32)
        ids = np.concatenate([self._ids, ids])[places]
        probs = np.concatenate([self._probs, probs])[places]
        if len(unique) > self._max_rows:
            # The most frequent stay; of equally frequent ones the latest.
            best = np.lexsort((-places, -totals))[: self._max_rows]
            best.sort()
            unique, totals, ids, probs = unique[best], totals[best], ids[best], probs[best]
        self._keys, self._counts, self._ids, self._probs = unique, totals, ids, probs

    def two(self, before: TokenId, token: TokenId) -> Row | None:
        """Look up the row of ``token`` after ``before``."""
        return self._find(pair_key(before, token))

    def one(self, token: TokenId) -> Row | None:
        """Look up the row of ``token``, whatever came before it."""
        return self._find(token)

    def _find(self, key: int) -> Row | None:
        place = int(self._keys.searchsorted(key))
        if place == len(self._keys) or self._keys[place] != key:
            return None
        return self._ids[place].tolist(), self._probs[place].tolist()

    def size_bytes(self) -> int:
        """Estimate the memory held."""
        arrays = (self._keys, self._counts, self._ids, self._probs)
        return sum(part.nbytes for part in arrays)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all rows; the file appears as a whole or not at all, and is its owner's only.

        Raises:
            ConfigError: if it cannot be written.
        """
        write_arrays(
            path,
            _WHAT,
            {
                "version": np.array(_VERSION, np.int32),
                "fingerprint": np.array(self.fingerprint),
                "keys": self._keys,
                "counts": self._counts,
                "ids": self._ids,
                "probs": self._probs,
            },
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        fingerprint: str | None = None,
        max_rows: int = MAX_ROWS,
    ) -> RowMemory:
        """Read what ``save`` wrote.

        Args:
            path: the file.
            fingerprint: of the model in use; None takes rows of any.
            max_rows: most rows taken.

        Raises:
            ConfigError: if the file is missing, too large, damaged, of another version, or of
                another model.
        """
        name = os.fspath(path)
        arrays = read_arrays(path, _WHAT, _KINDS, _MAX_FILE_BYTES)
        try:
            _check(arrays)
        except ValueError as error:
            raise ConfigError(f"{name} cannot be read as a {_WHAT}: {error}") from error
        found = str(arrays["fingerprint"])
        if fingerprint is not None and found != fingerprint:
            raise ConfigError(
                f"the row memory {name} is of the model {found!r}, not of {fingerprint!r}"
            )
        memory = cls(found, max_rows)
        memory._take(arrays)
        return memory

    def _take(self, arrays: dict[str, NDArray[Any]]) -> None:
        kept = np.sort(np.lexsort((-arrays["counts"],))[: self._max_rows])
        self._keys = arrays["keys"].astype(np.int64)[kept]
        self._counts = arrays["counts"].astype(np.int32)[kept]
        self._ids = arrays["ids"].astype(np.int32)[kept]
        self._probs = arrays["probs"].astype(np.float16)[kept]


def _check(arrays: dict[str, NDArray[Any]]) -> None:
    """Compare the arrays with each other; ``ValueError`` says what is wrong."""
    if int(arrays["version"]) != _VERSION:
        raise ValueError(f"it has version {int(arrays['version'])}, not {_VERSION}")
    keys, ids, probs = arrays["keys"], arrays["ids"], arrays["probs"]
    n = len(keys)
    if len(arrays["counts"]) != n or ids.shape != (n, _WIDTH) or probs.shape != (n, _WIDTH):
        raise ValueError("its arrays have different lengths")
    if n and (keys[0] < 0 or (np.diff(keys) <= 0).any() or ids.min() < 0):
        raise ValueError("its keys must rise and token ids must not be negative")
    if n and not ((probs >= 0) & (probs <= 1)).all():
        raise ValueError("its probabilities must lie between 0 and 1")
