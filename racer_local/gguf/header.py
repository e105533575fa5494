"""Check a GGUF file before llama.cpp sees it. Layer: pure (standard library only).

A damaged or foreign file ends inside llama.cpp in a log line at best and in a crash at worst. This
reads the header, never the weights, and says in one line what is wrong and what to do. It applies
the rules of llama.cpp's own reader, so what passes here is read there too; what llama.cpp then
makes of the architecture and the tensors' shapes is left to it.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from racer_local.errors import ModelLoadError
from racer_local.gguf.info import GgufInfo
from racer_local.gguf.kinds import file_type_name, looks_like
from racer_local.gguf.reader import GGML_TYPES, HeaderReader, Scalar, StoredArray
from racer_local.wording import quoted

__all__ = ["inspect_gguf", "read_text_value"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
# Far above any real model (mixture-of-experts files of the old kind come to about 50,000 tensors).
_MAX_KEYS = 1 << 14
_MAX_TENSORS = 1 << 18
_MAX_TENSOR_NAME_BYTES = 63
_MAX_DIMS = 4
_MAX_TYPE_NUMBER = 255
_MAX_KEPT_TEXT_BYTES = 1 << 20
_INT64_MAX = 2**63 - 1
_PART_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


@dataclass(slots=True)
class _Header:
    """One file's header as read; ``arrays`` and ``long_texts`` name what was not kept."""

    version: int
    n_tensors: int
    n_kv: int
    size_bytes: int
    scalars: dict[str, Scalar] = field(default_factory=dict)
    arrays: dict[str, StoredArray] = field(default_factory=dict)
    long_texts: set[str] = field(default_factory=set)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def text(self, key: str) -> str:
        value = self.scalars.get(key)
        return value if isinstance(value, str) else ""

    def count(self, key: str) -> int | None:
        value = self.scalars.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def inspect_gguf(path: str | os.PathLike[str]) -> GgufInfo:
    """Read and check the header of a model file, and of its other parts if it is split.

    Raises:
        ModelLoadError: the file is missing, unreadable, not a GGUF file, damaged, cut short, of a
            version llama.cpp does not read, or not the first part of a split model.
    """
    path = Path(path)
    header = _read_header(path)
    n_parts = header.count("split.count") or 1
    size_bytes = header.size_bytes
    if n_parts > 1:
        size_bytes += sum(_read_header(part).size_bytes for part in _other_parts(path, header))
    arch = header.text("general.architecture")
    tokens = header.arrays.get("tokenizer.ggml.tokens")
    template = "tokenizer.chat_template"
    n_tensors = header.count("split.tensors.count") if n_parts > 1 else None
    return GgufInfo(
        path=path,
        version=header.version,
        arch=arch,
        name=header.text("general.name"),
        file_type=file_type_name(header.count("general.file_type")),
        n_tensors=n_tensors if n_tensors is not None else header.n_tensors,
        n_kv=header.n_kv,
        size_bytes=size_bytes,
        context_length=header.count(f"{arch}.context_length"),
        has_chat_template=template in header.long_texts or bool(header.text(template)),
        n_parts=n_parts,
        tokenizer=header.text("tokenizer.ggml.model"),
        n_vocab=tokens.length if tokens else header.count(f"{arch}.vocab_size"),
        metadata=header.scalars,
        tokenizer_spans=header.spans,
    )


def read_text_value(path: str | os.PathLike[str], key: str) -> str | None:
    """Return a text of the metadata, however long it is up to 128 KB; None where there is none.

    Raises:
        ModelLoadError: the file is not a sound model.
    """
    path = Path(path)
    n_kv = inspect_gguf(path).n_kv
    shown = quoted(str(path))
    with io.FileIO(path, "r") as file:
        reader = HeaderReader(file, os.fstat(file.fileno()).st_size, shown)
        reader.skip(24, "its counts")
        for number in range(1, n_kv + 1):
            name = reader.name(f"metadata key {number}")
            kind = reader.u32(f"the type of {quoted(name)}")
            if name == key:
                return reader.long_text(kind, f"the value of {quoted(name)}")
            reader.value(kind, name)
    return None


# --- the file itself -------------------------------------------------------------------------


def _read_header(path: Path) -> _Header:
    shown = quoted(str(path))
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise ModelLoadError(f"{shown} is a folder; give the path of a .gguf file in it")
        if not stat.S_ISREG(status.st_mode):
            raise ModelLoadError(f"{shown} is a device or pipe, not a file; give a .gguf file")
        # Unbuffered: the reader has its own window.
        with io.FileIO(path, "r") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            return _parse(file, size_bytes, shown)
    except FileNotFoundError:
        if os.path.islink(path):
            raise ModelLoadError(f"{shown} is a link to a file that is gone") from None
        raise ModelLoadError(f"no model file at {shown}; check the path") from None
    except PermissionError:
        raise ModelLoadError(f"{shown} may not be read; change its permissions") from None
    except (OSError, ValueError) as error:
        # ValueError: a path with a zero byte in it.
        raise ModelLoadError(f"{shown} cannot be read: {error}") from None


def _other_parts(path: Path, header: _Header) -> Iterator[Path]:
    """Yield the other files of a split model, all of which must be there."""
    n_parts = header.count("split.count") or 1
    number = header.count("split.no") or 0
    match = _PART_NAME.search(path.name)
    if match is None or int(match[2]) != n_parts:
        raise ModelLoadError(
            f"{quoted(str(path))} is part {number + 1} of a model split into {n_parts} files, but "
            f"is not named so; llama.cpp needs names that end in -00001-of-{n_parts:05d}.gguf"
        )
    stem = path.name[: match.start()]
    paths = [path.with_name(f"{stem}-{i:05d}-of-{n_parts:05d}.gguf") for i in range(1, n_parts + 1)]
    if number != 0:
        raise ModelLoadError(
            f"{quoted(path.name)} is part {number + 1} of {n_parts} of a split model; "
            f"give the first part, {quoted(str(paths[0]))}"
        )
    missing = [part.name for part in paths[1:] if not part.is_file()]
    if missing:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ModelLoadError(
            f"{len(missing)} of {n_parts} parts of the split model {quoted(path.name)} are "
            f"missing: {names}; put them into the same folder"
        )
    yield from paths[1:]


# --- the header ------------------------------------------------------------------------------


def _parse(file: BinaryIO, size_bytes: int, shown: str) -> _Header:
    if size_bytes == 0:
        raise ModelLoadError(f"{shown} is empty (0 bytes); download it again")
    start = file.read(512)
    if start[:4] != _MAGIC:
        raise ModelLoadError(f"{shown} is not a GGUF file: {looks_like(start)}")
    reader = HeaderReader(file, size_bytes, shown)
    reader.skip(4, "its first bytes")
    version = reader.u32("its version")
    if version not in _VERSIONS:
        raise ModelLoadError(_bad_version(shown, version))
    n_tensors = reader.u64("its tensor count")
    n_kv = reader.u64("its key count")
    # A key takes at least 8 + 1 + 4 + 1 bytes, a tensor 8 + 4 + 4 + 8.
    for what, count, limit, least in (
        ("metadata keys", n_kv, _MAX_KEYS, 14),
        ("tensors", n_tensors, _MAX_TENSORS, 24),
    ):
        if count > limit:
            raise reader.fail(f"it claims {count} {what}")
        if count * least > reader.n_left:
            raise reader.cut(f"its list of {count} {what}")
    header = _Header(version, n_tensors, n_kv, size_bytes)
    _read_keys(reader, header)
    _check_tensors(reader, header)
    return header


def _bad_version(shown: str, version: int) -> str:
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *_VERSIONS):
        return f"{shown} was made for big-endian machines; get the ordinary little-endian file"
    if version < _VERSIONS[0]:
        return f"{shown} is of GGUF version {version}, too old for llama.cpp; get a newer file"
    return f"{shown} is of GGUF version {version}, unknown to llama.cpp; it may be damaged or newer"


def _read_keys(reader: HeaderReader, header: _Header) -> None:
    seen: set[str] = set()
    kept_bytes = 0
    for number in range(1, header.n_kv + 1):
        key = reader.name(f"metadata key {number}")
        if not key or key in seen:
            raise reader.fail(f"metadata key {number} is {'a duplicate' if key else 'empty'}")
        seen.add(key)
        kind = reader.u32(f"the type of {quoted(key)}")
        start = reader.position
        value = reader.value(kind, key)
        if key.startswith("tokenizer."):
            header.spans[key] = start, reader.position
        if isinstance(value, StoredArray):
            header.arrays[key] = value
            continue
        kept_bytes += len(value) if isinstance(value, str) else 0
        if value is None or kept_bytes > _MAX_KEPT_TEXT_BYTES:
            header.long_texts.add(key)
        else:
            header.scalars[key] = value
        if key == "general.alignment" and (kind != 4 or not _is_power_of_two(value)):
            raise reader.fail(f"its alignment is {value!r}, not a power of two")


def _is_power_of_two(value: object) -> bool:
    return isinstance(value, int) and value > 0 and value & (value - 1) == 0


def _check_tensors(reader: HeaderReader, header: _Header) -> None:
    """Check every tensor's shape, type and place, and that the file reaches to the last one."""
    alignment = header.count("general.alignment") or _DEFAULT_ALIGNMENT
    seen: set[str] = set()
    expected: int | None = 0
    end = 0
    for number in range(1, header.n_tensors + 1):
        name = reader.name(f"tensor {number}", _MAX_TENSOR_NAME_BYTES)
        if name in seen:
            raise reader.fail(f"the tensor {quoted(name)} is there twice")
        seen.add(name)
        n_bytes = _tensor_bytes(reader, name)
        offset = reader.u64(f"the offset of {quoted(name)}")
        # llama.cpp takes tensors only one after the other. After one of a type that is newer than
        # this table the place of the next is not known.
        if offset % alignment or (expected is not None and offset != expected):
            raise reader.fail(f"the tensor {quoted(name)} is at the unexpected offset {offset}")
        if offset > _INT64_MAX - (n_bytes or 0) - alignment:
            raise reader.fail(f"the tensor {quoted(name)} is at the absurd offset {offset}")
        end = max(end, offset + (n_bytes or 0))
        expected = None if n_bytes is None else _padded(offset + n_bytes, alignment)
    if header.n_tensors == 0:
        return
    needed = _padded(reader.position, alignment) + end
    if needed > header.size_bytes:
        share = 100 * header.size_bytes // needed
        raise reader.cut(f"the weights: {needed} bytes are needed and {share} % are there")


def _padded(n: int, alignment: int) -> int:
    return (n + alignment - 1) // alignment * alignment


def _tensor_bytes(reader: HeaderReader, name: str) -> int | None:
    """Read a tensor's shape and type; return its size, or None for a type not known here."""
    where = f"the tensor {quoted(name)}"
    n_dims = reader.u32(where)
    if n_dims > _MAX_DIMS:
        raise reader.fail(f"{where} has {n_dims} dimensions")
    shape = [reader.u64(where) for _ in range(n_dims)]
    n_elements = 1
    for extent in shape:
        n_elements *= extent
        if extent > _INT64_MAX or n_elements > _INT64_MAX:
            raise reader.fail(f"{where} has the absurd shape {shape}")
    kind = reader.u32(where)
    if kind not in GGML_TYPES:
        if kind > _MAX_TYPE_NUMBER:
            raise reader.fail(f"{where} has the unknown type {kind}")
        if kind <= max(GGML_TYPES):
            raise ModelLoadError(
                f"{where} is stored as type {kind}, which llama.cpp has given up; "
                "get a newer file of this model"
            )
        return None
    type_name, block, block_bytes = GGML_TYPES[kind]
    row = shape[0] if shape else 1
    if row % block:
        raise reader.fail(f"{where} has rows of {row}, not whole blocks of {type_name}")
    return n_elements // block * block_bytes
