"""Every error this package raises on purpose.

    RacerError
    ├── ConfigError (also ValueError)   a setting is out of range
    ├── ModelLoadError (also ValueError)    the file is missing, broken or refused by llama.cpp
    ├── UnsupportedModelError           a sound file of a kind that cannot generate text here
    ├── ContextFullError (also ValueError)  the prompt does not fit the context
    ├── DecodeError                     llama.cpp could not run a batch; carries its return code
    ├── ClosedError                     the model was closed
    ├── BusyError                       another call is running on the same engine
    └── TraceError                      a recorded trace cannot be read

A message says what happened, shows the value, and tells what to do. It is meant for the user:
the command line prints it as one line.
"""

from __future__ import annotations

__all__ = [
    "BusyError",
    "ClosedError",
    "ConfigError",
    "ContextFullError",
    "DecodeError",
    "ModelLoadError",
    "RacerError",
    "TraceError",
    "UnsupportedModelError",
]


_DECODE_CODES = {
    1: "no free slot in the KV cache; use a larger context or a smaller draft budget",
    2: "the computation was aborted",
    -1: "llama.cpp refused the batch as inconsistent",
    -2: "llama.cpp could not allocate memory for the batch; use a smaller context or batch",
    -3: "the computation failed on the device",
}


class RacerError(Exception):
    """Base of all errors whose message may be shown to the user as it is."""


class ConfigError(RacerError, ValueError):
    """A setting is outside its legal range."""


class ModelLoadError(RacerError, ValueError):
    """A model file is missing, damaged, or was refused by llama.cpp."""


class UnsupportedModelError(RacerError):
    """The file is sound, but its model cannot generate text here."""


class ContextFullError(RacerError, ValueError):
    """The prompt does not fit into the context window.

    Attributes:
        n_prompt: tokens in the prompt.
        n_ctx: tokens the context can hold.
    """

    def __init__(self, n_prompt: int, n_ctx: int) -> None:
        """Build the message from both counts."""
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx
        super().__init__(
            f"the prompt has {n_prompt} tokens but the context holds {n_ctx}; "
            "shorten the prompt or open the model with a larger context (--ctx)"
        )


class DecodeError(RacerError):
    """llama.cpp could not evaluate a batch.

    Attributes:
        code: return code of ``llama_decode``.
    """

    def __init__(self, code: int, detail: str = "") -> None:
        """Name the return code; ``detail`` is the last native log line, if any."""
        self.code = code
        meaning = _DECODE_CODES.get(code, "unknown failure")
        suffix = f" ({detail})" if detail else ""
        super().__init__(f"decoding failed with code {code}: {meaning}{suffix}")


class ClosedError(RacerError):
    """The engine or model was used after it had been closed."""


class BusyError(RacerError):
    """Another generation is running on this engine."""


class TraceError(RacerError):
    """A trace file is missing, damaged, or of another format."""
