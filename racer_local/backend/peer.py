"""llama-cpp-python itself as a yardstick, in a process of its own.

``python -m racer_local.backend.peer SETTINGS`` opens ``llama_cpp.Llama`` as its users do and
answers requests, one JSON object a line. ``SETTINGS`` is a JSON object: ``path``, ``n_ctx``,
``n_threads``, ``n_gpu_layers``, ``kv_type``.

    request   {"prompt": [ids], "max_tokens": 64, "lookup": 10}     lookup 0 is plain decoding
    reply     {"tokens": [ids], "n_decoded", "n_steps", "n_drafted", "prefill_s", "decode_s"}
              {"error": "what went wrong"}

The first line it writes is ``{"ready": VERSION}``. It ends when its input does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any, TextIO

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from numpy.typing import NDArray

from racer_local.backend.kv import KV_TYPES
from racer_local.hardware.native_check import extra_buffers_are_safe

__all__ = ["main"]


class _CountingLookup(LlamaPromptLookupDecoding):  # type: ignore[misc]  # llama_cpp has no types
    """Their prompt lookup, with counts of what it was asked and what it drafted."""

    def __init__(self, num_pred_tokens: int) -> None:
        super().__init__(num_pred_tokens=num_pred_tokens)
        self.n_calls = 0
        self.n_drafted = 0

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        tokens: NDArray[np.intc] = super().__call__(input_ids, **kwargs)
        self.n_calls += 1
        self.n_drafted += len(tokens)
        return tokens


class _Peer:
    """One plain model, and one with prompt lookup that is opened when it is first asked for."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._plain = self._open()
        self._lookup: llama_cpp.Llama | None = None

    def _open(self, **more: Any) -> llama_cpp.Llama:
        return llama_cpp.Llama(
            self._settings["path"],
            n_ctx=self._settings["n_ctx"],
            n_threads=self._settings["n_threads"],
            n_threads_batch=self._settings["n_threads"],
            n_gpu_layers=self._settings["n_gpu_layers"],
            flash_attn=True,
            type_k=KV_TYPES[self._settings["kv_type"]],
            type_v=KV_TYPES[self._settings["kv_type"]],
            swa_full=True,
            verbose=False,
            **more,
        )

    def answer(self, prompt: Sequence[int], max_tokens: int, lookup: int) -> dict[str, Any]:
        """Answer greedily from an empty cache."""
        llama, drafter = self._plain, None
        if lookup:
            drafter = _CountingLookup(lookup)
            # Without logits_all their score table is too small for a prompt longer than a batch.
            self._lookup = self._lookup or self._open(logits_all=True, draft_model=drafter)
            llama = self._lookup
            llama.draft_model = drafter
        llama.reset()
        vocab = llama_cpp.llama_model_get_vocab(llama.model)
        tokens: list[int] = []
        started = first = perf_counter()
        n_decoded = -1
        for token in llama.generate(list(prompt), temp=0.0, repeat_penalty=1.0):
            n_decoded += 1
            if n_decoded == 0:
                first = perf_counter()
            if llama_cpp.llama_vocab_is_eog(vocab, token):
                break
            tokens.append(token)
            if len(tokens) == max_tokens:
                break
        return {
            "tokens": tokens,
            "n_decoded": max(n_decoded, 0),
            # Every pass after the prompt's is preceded by one call of the drafter.
            "n_steps": drafter.n_calls if drafter else max(n_decoded, 0),
            "n_drafted": drafter.n_drafted if drafter else 0,
            "prefill_s": first - started,
            "decode_s": perf_counter() - first,
        }


def _serve(settings: dict[str, Any], requests: TextIO, replies: TextIO) -> None:
    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    if not extra_buffers_are_safe():
        reply({"error": "this llama.cpp build crashes on this processor; reinstall it"})
        return
    try:
        peer = _Peer(settings)
        reply({"ready": llama_cpp.__version__})
        for line in requests:
            asked = json.loads(line)
            reply(peer.answer(asked["prompt"], asked["max_tokens"], asked["lookup"]))
    except Exception as error:  # noqa: BLE001 - the other side reports it
        reply({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Serve until the input ends; stdout carries replies only."""
    # Native code may write to stdout: it gets stderr, and the replies a descriptor of their own.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _serve(json.loads(sys.argv[1]), sys.stdin, replies)


if __name__ == "__main__":
    main()
