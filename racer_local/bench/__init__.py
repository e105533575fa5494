"""The benchmark: plain decoding, draft modes and other programs on the same prompts in one run.

Layer: above the engine. Models and native code come in through the contestants; nothing here
imports llama_cpp.
"""

from __future__ import annotations
