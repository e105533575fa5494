"""A target on a context that somebody else opened and frees: ``llama_cpp.Llama``'s own."""

from __future__ import annotations

import weakref

import llama_cpp

from racer_local.backend.model import LlamaModel
from racer_local.backend.target import LlamaTarget, prompt_rows
from racer_local.config import ModelConfig

__all__ = ["AdoptedTarget", "amend_context_params"]


def amend_context_params(
    params: llama_cpp.llama_context_params,
    *,
    n_vocab: int,
    n_batch: int,
    max_nodes: int,
    max_leaves: int,
    keeps_all_rows: bool,
) -> None:
    """Change what a context for draft trees needs otherwise than ``llama_cpp.Llama`` asks for.

    Args:
        params: are changed.
        n_vocab: of the model.
        n_batch: most tokens of a batch.
        max_nodes: most draft nodes in one step; 0 where the model cannot take drafts.
        max_leaves: most branches of one draft tree.
        keeps_all_rows: make room for the logits of a whole batch, which who decodes by hand
            may want; llama.cpp ends the process where there are more than there is room for.
    """
    params.n_seq_max = max_leaves + 1 if max_nodes else 1
    params.kv_unified = True
    # Without all of its cells a sliding window cannot be rolled back; llama.cpp would not say so.
    params.swa_full = True
    # Limits the buffer of logits, which llama.cpp would size for a whole batch.
    n_rows = n_batch if keeps_all_rows else prompt_rows(n_batch, n_vocab)
    params.n_outputs_max = max(n_rows, max_nodes + 1, max_leaves + 1)


class AdoptedTarget(LlamaTarget):
    """Like ``LlamaTarget``, but the context is only used here. Close it before its owner does.

    The owner may have it decode by hand; what is left in the cache by that is given up.
    """

    def __init__(
        self, model: LlamaModel, config: ModelConfig, ctx: object, *, keeps_all_rows: bool
    ) -> None:
        """Use ``ctx``, opened with ``amend_context_params`` for at least the sizes in ``config``.

        Raises:
            DecodeError: the context cannot decode.
        """
        self._adopted = ctx
        self._keeps_all_rows = keeps_all_rows
        super().__init__(model, config)

    def _choose_n_ctx(self, config: ModelConfig) -> int:
        return int(llama_cpp.llama_n_ctx(self._adopted))

    def _open(self, config: ModelConfig) -> None:
        self.kv_type = config.kv_type or "f16"
        n_rows = prompt_rows(self.n_batch, self.n_vocab)
        self.max_prompt_rows = self.n_batch if self._keeps_all_rows else n_rows
        self._attach(self._adopted, weakref.finalize(self, _leave))


def _leave() -> None:
    """Free nothing: the owner does."""
