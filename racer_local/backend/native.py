"""Loading llama.cpp: start-up, its log, and a flag that stops a running decode.

Importing this module loads the native library. llama.cpp has one log for the whole process;
it goes to the logger ``racer_local.native``, which prints nothing unless the application
configures it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections import deque

import llama_cpp

__all__ = [
    "AbortFlag",
    "clear_native_errors",
    "last_native_error",
    "physical_cores",
    "runtime_version",
]

logger = logging.getLogger("racer_local.native")

# enum ggml_log_level; 5 continues the previous line.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUE = 5

_errors: deque[str] = deque(maxlen=8)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # a ctypes factory
def _on_native_log(level: int, text: bytes | None, _user_data: object) -> None:
    # An exception must not cross back into C; late calls during interpreter exit find no modules.
    try:
        line = (text or b"").decode("utf-8", "replace").rstrip()
        if level == _CONTINUE or not line:
            return
        severity = _LEVELS.get(level, logging.DEBUG)
        if severity >= logging.ERROR:
            _errors.append(line)
        logger.log(severity, "%s", line)
    except Exception:  # noqa: BLE001 - see above
        pass


def _start() -> None:
    llama_cpp.llama_log_set(_on_native_log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()


_start()


def clear_native_errors() -> None:
    """Forget earlier error lines, before a call whose own failure is to be explained."""
    _errors.clear()


def last_native_error() -> str:
    """Return the first line llama.cpp logged as an error since the last clear, or ''."""
    if not _errors:
        return ""
    line = _errors[0]
    # "function_name: what went wrong"
    head, _, rest = line.partition(": ")
    return rest if rest and " " not in head else line


class AbortFlag:
    """A flag that llama.cpp polls between the operations of a computation.

    The native callback is libc's ``strlen`` over two bytes of ours: it returns 0 while the
    first byte is 0. No Python code runs on the compute threads, and no lock is taken there; a
    Python callback would cost about a tenth of a step on a small model. Devices other than the
    CPU do not poll it: there a stop takes effect at the end of the batch.
    """

    def __init__(self) -> None:
        """Make a flag that is down."""
        self._bytes = ctypes.create_string_buffer(b"\0\0", 2)
        libc = ctypes.CDLL("msvcrt") if sys.platform == "win32" else ctypes.CDLL(None)
        address = ctypes.cast(libc.strlen, ctypes.c_void_p).value
        self._callback = llama_cpp.ggml_abort_callback(address)

    def attach(self, ctx: object) -> None:
        """Have ``ctx`` poll this flag; the flag must outlive the context."""
        data = ctypes.cast(self._bytes, ctypes.c_void_p)
        llama_cpp.llama_set_abort_callback(ctx, self._callback, data)

    def raise_(self) -> None:
        """Stop the running computation, and any that follows until ``lower``."""
        self._bytes[0] = b"\1"

    def lower(self) -> None:
        """Let computations run."""
        self._bytes[0] = b"\0"

    @property
    def is_raised(self) -> bool:
        """Whether a stop was asked for."""
        return self._bytes[0] != b"\0"


def runtime_version() -> str:
    """Name the native library: the version of llama-cpp-python, which fixes llama.cpp's."""
    return f"llama-cpp-python {llama_cpp.__version__}"


def physical_cores() -> int:
    """Count the cores worth a thread each: physical ones, fast ones on Apple Silicon.

    Hyper-threads share the units that matrix products use, and a decode step waits for its
    slowest thread. The process' CPU affinity is respected.
    """
    if sys.platform == "darwin":
        fast = _apple_performance_cores()
        if fast:
            return fast
    import psutil  # type: ignore[import-untyped]  # no stubs needed for one call

    cores: int = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    return max(1, cores)


def _apple_performance_cores() -> int:
    value = ctypes.c_int(0)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    libc = ctypes.CDLL(None)
    name = b"hw.perflevel0.physicalcpu"
    rc = libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0)
    return value.value if rc == 0 else 0
