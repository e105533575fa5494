"""Files of plain arrays that are safe to read from a stranger. Layer: files (NumPy only).

A file is a NumPy ``.npz``: a zip archive with one ``.npy`` member per array, whose checksums find
damage. It is read here without pickle, hence without running anything that it holds; nothing that
it claims about its own size is believed; and it is written in one stroke, readable by its owner
only.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from racer_local.errors import ConfigError
from racer_local.storage.files import new_file

__all__ = ["read_arrays", "write_arrays"]

# A header of ours takes 128 bytes.
_MAX_NPY_HEADER = 4096


def write_arrays(
    path: str | os.PathLike[str],
    what: str,
    arrays: Mapping[str, NDArray[Any]],
    *,
    compress: bool = True,
) -> None:
    """Write arrays; the file appears as a whole or not at all, and is its owner's only.

    Args:
        path: the file.
        what: what the file is called in messages.
        arrays: by name.
        compress: smaller, but slower to read.

    Raises:
        ConfigError: it cannot be written.
    """
    target = Path(path)
    save = np.savez_compressed if compress else np.savez
    try:
        with new_file(target) as file:
            save(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise ConfigError(f"cannot write the {what} {target}: {error}") from error


def read_arrays(
    path: str | os.PathLike[str], what: str, kinds: Mapping[str, tuple[str, int]], max_bytes: int
) -> dict[str, NDArray[Any]]:
    """Read arrays and check their types.

    Args:
        path: the file.
        what: what the file is called in messages.
        kinds: NumPy type kinds that each array may have, and its number of axes.
        max_bytes: most bytes of the file, and of all its arrays once unpacked.

    Returns:
        The arrays that ``kinds`` names; they may be read-only.

    Raises:
        ConfigError: the file is missing, too large, damaged, or holds something else.
    """
    name = os.fspath(path)
    try:
        return _read(name, kinds, max_bytes)
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} {name}") from None
    except Exception as error:  # whatever damage provokes in the unpacking, it is refused
        reason = str(error) or type(error).__name__
        raise ConfigError(f"{name} cannot be read as a {what}: {reason}") from error


def _read(
    name: str, kinds: Mapping[str, tuple[str, int]], max_bytes: int
) -> dict[str, NDArray[Any]]:
    if os.path.getsize(name) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")
    arrays: dict[str, NDArray[Any]] = {}
    n_left = max_bytes
    with open(name, "rb") as file, zipfile.ZipFile(file) as archive:
        for key, (kind, n_axes) in kinds.items():
            member = archive.getinfo(f"{key}.npy")
            n_left -= member.file_size
            if n_left < 0:
                raise ValueError(f"its arrays are larger than {max_bytes} bytes")
            array = _array(archive.read(member))
            if array.dtype.kind not in kind or array.ndim != n_axes:
                raise ValueError(f"array {key!r} is {array.dtype} with {array.ndim} axes")
            arrays[key] = array
    return arrays


def _array(content: bytes) -> NDArray[Any]:
    """Read one ``.npy`` member; its values are taken from ``content`` as they lie there."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("it has arrays of an unknown format")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(
        stream, max_header_size=_MAX_NPY_HEADER
    )
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    values = memoryview(content)[stream.tell() :]
    n_values = 1
    for length in shape:
        n_values *= length
    if min(shape, default=0) < 0 or n_values * dtype.itemsize != len(values):
        raise ValueError("the size of an array is not what it claims")
    array = np.frombuffer(values, dtype) if n_values else np.zeros(0, dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")
