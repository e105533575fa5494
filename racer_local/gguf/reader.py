"""Read the bytes of a GGUF header within strict bounds. Layer: pure (standard library only).

The file is read through one small window, so neither its size nor anything it claims about itself
decides how much memory is used. Every failure is a ``ModelLoadError`` with one line.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

from racer_local.errors import ModelLoadError
from racer_local.wording import quoted

__all__ = [
    "ARRAY",
    "GGML_TYPES",
    "HeaderReader",
    "Scalar",
    "StoredArray",
]

Scalar: TypeAlias = "int | float | bool | str"

_WINDOW_BYTES = 1 << 18
_MAX_KEY_BYTES = 1024
_MAX_KEPT_TEXT_BYTES = 4096
_MAX_LONG_TEXT_BYTES = 1 << 17

# GGUF value types: number, struct format.
_NUMBERS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_BOOL = 7
_TEXT = 8
ARRAY = 9
_U32 = _NUMBERS[4]
_U64 = _NUMBERS[10]

# ggml tensor types: number -> (name, elements in a block, bytes in a block).
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}


@dataclass(frozen=True, slots=True)
class StoredArray:
    """What is kept of an array in the metadata: how many elements of which type it has."""

    element_type: int
    length: int


class HeaderReader:
    """A forward-only reader of little-endian GGUF fields."""

    def __init__(self, file: BinaryIO, size_bytes: int, shown_name: str) -> None:
        """Start at the beginning of an open file of a known size."""
        self._file = file
        self._size = size_bytes
        self._name = shown_name
        self._window = b""
        self._window_start = 0
        self._at = 0  # next byte, relative to the window

    @property
    def position(self) -> int:
        """Offset of the next byte in the file."""
        return self._window_start + self._at

    @property
    def n_left(self) -> int:
        """Bytes from here to the end of the file."""
        return self._size - self.position

    def fail(self, what: str) -> ModelLoadError:
        """Make the error for a damaged header."""
        return ModelLoadError(f"{self._name} is damaged: {what}; download it again")

    def cut(self, where: str) -> ModelLoadError:
        """Make the error for a header that goes beyond the end of the file."""
        return ModelLoadError(
            f"{self._name} is cut short: it ends after {self._size} bytes, in {where}; "
            "download it again"
        )

    def take(self, n: int, where: str) -> bytes:
        """Read ``n`` bytes; ``n`` must have been checked to be small."""
        self._need(n, where)
        start = self._at
        self._at += n
        return self._window[start : self._at]

    def skip(self, n: int, where: str) -> None:
        """Go ``n`` bytes on without reading them."""
        if n > self.n_left:
            raise self.cut(where)
        self._at += n
        if self._at > len(self._window):
            self._refill()

    def u32(self, where: str) -> int:
        """Read an unsigned 32-bit number."""
        value: int = _U32.unpack(self.take(4, where))[0]
        return value

    def u64(self, where: str) -> int:
        """Read an unsigned 64-bit number."""
        value: int = _U64.unpack(self.take(8, where))[0]
        return value

    def name(self, where: str, max_bytes: int = _MAX_KEY_BYTES) -> str:
        """Read the name of a key or tensor: short, valid UTF-8."""
        length = self.u64(where)
        if length > max_bytes:
            raise self.fail(f"{where} has a name of {length} bytes")
        try:
            return self.take(length, where).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{where} has a name that is not text") from None

    def value(self, kind: int, key: str) -> Scalar | StoredArray | None:
        """Read the value of a key. Of an array only type and length are kept; None: long text."""
        where = f"the value of {quoted(key)}"
        if kind == ARRAY:
            return self._array(key, where)
        if kind == _TEXT:
            return self._text(where)
        if kind == _BOOL:
            return self.take(1, where) != b"\0"
        if kind not in _NUMBERS:
            raise self.fail(f"{where} has the unknown type {kind}")
        number = _NUMBERS[kind]
        result: int | float = number.unpack(self.take(number.size, where))[0]
        return result

    def long_text(self, kind: int, where: str) -> str | None:
        """Read a text that may be long; None for another type, or one of more than 128 KB."""
        if kind != _TEXT:
            return None
        length = self.u64(where)
        return (
            None
            if length > _MAX_LONG_TEXT_BYTES
            else self.take(length, where).decode("utf-8", "replace")
        )

    def _text(self, where: str) -> str | None:
        length = self.u64(where)
        if length > self.n_left:
            raise (
                self.cut(where)
                if length < 1 << 40
                else self.fail(f"{where} claims {length} bytes of text")
            )
        if length > _MAX_KEPT_TEXT_BYTES:
            self.skip(length, where)
            return None
        return self.take(length, where).decode("utf-8", "replace")

    def _array(self, key: str, where: str) -> StoredArray:
        kind = self.u32(where)
        length = self.u64(where)
        if kind == ARRAY:
            raise self.fail(f"{where} is an array of arrays, which GGUF readers do not take")
        if kind != _TEXT and kind != _BOOL and kind not in _NUMBERS:
            raise self.fail(f"{where} is an array of the unknown type {kind}")
        smallest = 8 if kind == _TEXT else 1 if kind == _BOOL else _NUMBERS[kind].size
        if length > 1 << 40:
            raise self.fail(f"{where} claims {length} elements")
        if length * smallest > self.n_left:
            raise self.cut(where)
        if kind == _TEXT:
            self._skip_texts(length, where)
        else:
            self.skip(length * smallest, where)
        return StoredArray(kind, length)

    def _skip_texts(self, n: int, where: str) -> None:
        """Step over ``n`` strings: a vocabulary has hundreds of thousands of them."""
        unpack = _U64.unpack_from
        while n:
            self._need(8, where)
            window = self._window
            last = len(window) - 8
            at = self._at
            try:
                while n and at <= last:
                    at += 8 + unpack(window, at)[0]
                    n -= 1
            finally:
                self._at = at
            if self.n_left < 0:
                raise self.cut(where)
            if self._at > len(window):
                self._refill()

    def _need(self, n: int, where: str) -> None:
        if self._at + n <= len(self._window):
            return
        if n > self.n_left:
            raise self.cut(where)
        self._refill()
        if n > len(self._window):
            # The file shrank while it was read.
            raise self.cut(where)

    def _refill(self) -> None:
        """Move the window so that it begins at the current position."""
        self._window_start += self._at
        self._at = 0
        self._file.seek(self._window_start)
        self._window = self._file.read(_WINDOW_BYTES)
