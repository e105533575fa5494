"""``RacerDraftModel``: drafts for those who must keep ``llama_cpp.Llama`` itself.

Its interface takes one chain and tells nothing of what became of it: no trees, no costs, no
rejected rows. ``RacerLlama`` has all of that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llama_cpp.llama_speculative import LlamaDraftModel
from numpy.typing import NDArray

from racer_local.config import DraftConfig
from racer_local.drafting.racer.drafter import RacerDrafter
from racer_local.speculation.drafter import Rows
from racer_local.speculation.topk import top_k
from racer_local.speculation.tree import ROOT, DraftTree, TokenId

__all__ = ["RacerDraftModel"]


class RacerDraftModel(LlamaDraftModel):  # type: ignore[misc]  # upstream has no types
    """Proposes the likeliest chain of the retrieval automaton and the Copy-Logit memory.

    Upstream needs ``logits_all=True`` beside it, or prompts longer than ``n_batch`` fail. After
    ``attach`` the rows that upstream keeps are learned from as well; without it only the
    automaton works.
    """

    def __init__(self, n_tokens: int = 4, draft: DraftConfig | None = None) -> None:
        """Start with no text.

        Args:
            n_tokens: longest chain. On a CPU two to four pay, if any.
            draft: sizes of the automaton; its mode and budget are not used.
        """
        self._config = draft or DraftConfig(mode="racer", budget=n_tokens)
        self._n_tokens = n_tokens
        self._llama: Any = None
        self._drafter = RacerDrafter(self._config)
        self._known: list[TokenId] = []
        self._n_learned = 0

    def attach(self, llama: Any) -> None:
        """Learn from the logits table of ``llama``, which was made with ``logits_all=True``."""
        self._llama = llama

    def __call__(self, input_ids: NDArray[np.intc], /, **_options: Any) -> NDArray[np.intc]:
        """Return a guess of what follows: int32, at most ``n_tokens`` ids, maybe none."""
        text = [int(token) for token in input_ids]
        if not text:
            return np.empty(0, np.intc)
        if text[: len(self._known)] != self._known:
            self._drafter.begin()
            self._known = []
            self._n_learned = 0
        self._drafter.feed(text[len(self._known) :])
        self._known = text
        self._learn()
        return np.asarray(self._chain(self._drafter.draft(self._n_tokens)), np.intc)

    def _learn(self) -> None:
        # The last token was sampled and not evaluated: it has no row yet.
        n_rows = len(self._known) - 1
        if self._llama is None or n_rows <= self._n_learned:
            return
        scores = self._llama.scores
        places = np.arange(self._n_learned, min(n_rows, len(scores)), dtype=np.int32)
        if len(places):
            ids, probs = top_k(scores[places], self._drafter.row_width)
            self._drafter.learn(Rows(places, ids, probs))
        self._n_learned = n_rows

    def _chain(self, tree: DraftTree) -> list[TokenId]:
        """Follow the first, which is the best, child of each node."""
        chain: list[TokenId] = []
        node = ROOT
        first_child: dict[int, int] = {}
        for child in range(len(tree) - 1, ROOT, -1):
            first_child[tree.parents[child]] = child
        while node in first_child and len(chain) < self._n_tokens:
            node = first_child[node]
            chain.append(tree.tokens[node])
        return chain
