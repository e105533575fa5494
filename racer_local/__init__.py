"""racer_local: faster local generation from any GGUF model, with the same output.

RACER (Retrieval-Augmented Contextual Rapid Speculative Decoding) over llama.cpp.
"""

from __future__ import annotations

import logging

# Silent unless the application configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"

__all__ = ["__version__"]
