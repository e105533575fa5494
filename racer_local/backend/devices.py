"""What the native library was built from, and the devices it can compute on."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp

__all__ = ["Device", "build_commit", "devices", "system_features"]

_KINDS = {0: "CPU", 1: "GPU", 2: "integrated GPU", 3: "accelerator"}
_MAX_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Device:
    """A device that llama.cpp can compute on.

    Attributes:
        name: llama.cpp's short name.
        description: what it is.
        kind: CPU, GPU, integrated GPU or accelerator.
        free_bytes: memory free on it; 0 where it does not tell.
        total_bytes: memory on it.
    """

    name: str
    description: str
    kind: str
    free_bytes: int
    total_bytes: int


def _libraries() -> Iterator[ctypes.CDLL]:
    folder = Path(llama_cpp.__file__).parent / "lib"
    for stem in ("ggml-base", "ggml"):
        for pattern in (f"lib{stem}.so", f"lib{stem}.dylib", f"{stem}.dll"):
            path = folder / pattern
            if path.exists():
                # Loaded already, with llama.cpp; this only takes a handle.
                with contextlib.suppress(OSError):
                    yield ctypes.CDLL(str(path))


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """Find a function of ggml; None where this build does not export it."""
    for library in _libraries():
        function = getattr(library, name, None)
        if function is not None:
            function.restype = result
            function.argtypes = list(arguments)
            return function
    return None


def build_commit() -> str:
    """Return the commit and version of ggml in the library, or ''."""
    parts = []
    for name in ("ggml_version", "ggml_commit"):
        function = _function(name, ctypes.c_char_p)
        text = function() if function is not None else None
        if text:
            parts.append(text.decode("utf-8", "replace"))
    return " ".join(parts)


def devices() -> list[Device]:
    """List the devices; empty where the build does not say."""
    count = _function("ggml_backend_dev_count", ctypes.c_size_t)
    get = _function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    name = _function("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    describe = _function("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    kind = _function("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    size_pointer = ctypes.POINTER(ctypes.c_size_t)
    memory = _function("ggml_backend_dev_memory", None, ctypes.c_void_p, size_pointer, size_pointer)
    if None in (count, get, name, describe, kind, memory):
        return []
    found = []
    for index in range(min(count(), _MAX_DEVICES)):
        handle = get(index)
        if not handle:
            continue
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        memory(handle, ctypes.byref(free), ctypes.byref(total))
        found.append(
            Device(
                (name(handle) or b"").decode("utf-8", "replace"),
                (describe(handle) or b"").decode("utf-8", "replace"),
                _KINDS.get(kind(handle), "device"),
                free.value,
                total.value,
            )
        )
    return found


def system_features() -> str:
    """Return llama.cpp's own line on the processor features it was built with."""
    text = llama_cpp.llama_print_system_info()
    return text.decode("utf-8", "replace").strip() if text else ""
