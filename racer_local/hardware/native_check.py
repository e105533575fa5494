"""Spot a native llama.cpp build that would crash on this processor. Layer: pure (stdlib only).

GCC before 11.5, 12.4 and 13.3 tells the optimizer that ``ldtilecfg`` reads 8 bytes, although it
reads 64; the stores to the rest are dropped, and the first batch of two or more quantized rows
dies of a general protection fault inside llama.cpp. It takes an Intel processor with AMX and such
a compiler, for example the one of Debian 12. Two ways out, both here:

- while compiling: ``amx_build_flags`` turns AMX off where the compiler is one of those;
- while loading: where ``extra_buffers_are_safe`` says no, open the model with
  ``use_extra_bufts = False``, which keeps llama.cpp on its ordinary kernels.

Source: GCC bug 114098 (https://gcc.gnu.org/PR114098).
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

__all__ = ["amx_build_flags", "extra_buffers_are_safe", "gcc_drops_tile_config", "gpu_backends"]

_AMX_SYMBOL = b"ggml_backend_amx_mul_mat"
_GCC_COMMENT = re.compile(rb"GCC: \([^)\0]{0,200}\) (\d+)\.(\d+)")
# First minor version of each GCC line with the repaired header.
_REPAIRED_SINCE = {11: 5, 12: 4, 13: 3}
_CPUINFO = Path("/proc/cpuinfo")
_GPU_LIBRARY = re.compile(r"(?:lib)?ggml-(metal|cuda|vulkan|hip|sycl|opencl|musa|cann)\b")


def gcc_drops_tile_config(major: int, minor: int) -> bool:
    """Tell whether this GCC miscompiles the loading of the AMX tile configuration."""
    return major in _REPAIRED_SINCE and minor < _REPAIRED_SINCE[major]


def cpu_has_amx(cpuinfo: Path = _CPUINFO) -> bool:
    """Tell whether the processor offers AMX; Linux only, as llama.cpp uses it only there."""
    try:
        return "amx_int8" in cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def amx_build_flags(compiler_version: str, cpuinfo: Path = _CPUINFO) -> str:
    """Return compiler flags that keep AMX out of a build which could not run it.

    Args:
        compiler_version: what ``c++ -dumpfullversion`` prints for GCC; empty for others.
        cpuinfo: the processor description of the machine.
    """
    match = re.match(r"(\d+)\.(\d+)", compiler_version)
    if match is None or not cpu_has_amx(cpuinfo):
        return ""
    if not gcc_drops_tile_config(int(match[1]), int(match[2])):
        return ""
    return "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def library_misuses_amx(library: Path) -> bool:
    """Tell whether a ggml CPU library holds AMX code made by a GCC that breaks it."""
    try:
        code = library.read_bytes()
    except OSError:
        return False
    if _AMX_SYMBOL not in code:
        return False
    versions = {(int(m[1]), int(m[2])) for m in _GCC_COMMENT.finditer(code)}
    return any(gcc_drops_tile_config(*version) for version in versions)


@functools.cache
def extra_buffers_are_safe() -> bool:
    """Tell whether llama.cpp's special weight layouts can be used with the installed build.

    Finds the installed library without loading it. Where nothing is known, the answer is yes.
    """
    if not cpu_has_amx():
        return True
    folder = _library_folder()
    if folder is None:
        return True
    return not any(library_misuses_amx(path) for path in sorted(folder.glob("libggml-cpu*.so")))


def _library_folder() -> Path | None:
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "lib"


@functools.cache
def gpu_backends() -> frozenset[str]:
    """Name the GPU back ends that the installed build brings, without loading it."""
    folder = _library_folder()
    try:
        names = [path.name for path in folder.iterdir()] if folder else []
    except OSError:
        names = []
    return frozenset(match[1] for match in map(_GPU_LIBRARY.match, names) if match)
