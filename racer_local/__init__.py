"""racer_local: faster local generation from any GGUF model, with the same output.

RACER (Retrieval-Augmented Contextual Rapid Speculative Decoding) over llama.cpp.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from racer_local.decoding.session import Session
    from racer_local.drop_in.draft_model import RacerDraftModel
    from racer_local.drop_in.llama import RacerLlama

# Silent unless the application configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"

__all__ = ["RacerDraftModel", "RacerLlama", "Session", "__version__"]

# Loaded when they are asked for: they load llama.cpp.
_LAZY = {
    "RacerDraftModel": "racer_local.drop_in.draft_model",
    "RacerLlama": "racer_local.drop_in.llama",
    "Session": "racer_local.decoding.session",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
