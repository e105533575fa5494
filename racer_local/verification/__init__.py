"""How lossless a model is on this machine: measured, and told in words.

Layer: above the engine. Models and native code come in from outside; nothing here imports
llama_cpp.
"""

from __future__ import annotations
