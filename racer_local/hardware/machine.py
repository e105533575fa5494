"""What a benchmark ran on: machine and model, for the report. Layer: files (no llama_cpp)."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from racer_local.gguf.fingerprint import fingerprint
from racer_local.gguf.info import GgufInfo

__all__ = ["describe_machine", "describe_model"]


def describe_machine() -> dict[str, Any]:
    """Describe processor, system and versions."""
    import psutil  # type: ignore[import-untyped]  # no stubs needed for two calls

    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": _cpu_name(),
        "logical_cores": os.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "usable_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": _load_average(),
        "system": platform.platform(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "racer_local": _version("racer-local"),
        "llama_cpp_python": _version("llama-cpp-python"),
    }


def _load_average() -> float | None:
    """Return what else was running in the last minute: above 0.5, figures are doubtful."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_model(info: GgufInfo) -> dict[str, Any]:
    """Describe a model by its header; the fingerprint tells files apart."""
    return {
        "file": info.path.name,
        "name": info.name,
        "arch": info.arch,
        "file_type": info.file_type,
        "size_bytes": info.size_bytes,
        "n_vocab": info.n_vocab,
        "fingerprint": fingerprint(info.path),
    }
