"""Drafters that know the answer and make the most trouble of it."""

from __future__ import annotations

from collections.abc import Sequence

from fakes import TreeDrafter

from racer_local.speculation.tree import ROOT, DraftTree, Source, TokenId

_DEPTH = 4


class _Knowing(TreeDrafter):
    """Knows what plain decoding says after a prompt."""

    def __init__(self, prompt: Sequence[TokenId], answer: Sequence[TokenId]) -> None:
        super().__init__(lambda text, budget: self._draft(text, budget))
        self._n_prompt = len(prompt)
        self._answer = list(answer)

    def _coming(self, text: list[TokenId]) -> list[TokenId]:
        # The root is the last token of the text.
        said = len(text) - self._n_prompt
        return self._answer[said : said + _DEPTH]

    def _draft(self, text: list[TokenId], budget: int) -> DraftTree:
        raise NotImplementedError


def _add_chain(tree: DraftTree, tokens: Sequence[TokenId], budget: int) -> None:
    node = ROOT
    for token in tokens:
        if len(tree) > budget:
            return
        node = tree.add(node, token, Source.LOGITS)


class RightPathLast(_Knowing):
    """Puts wrong branches, as long as the right one, before it: every win needs the repair."""

    def _draft(self, text: list[TokenId], budget: int) -> DraftTree:
        tree = DraftTree(text[-1])
        coming = self._coming(text)
        n_wrong = min(2, (budget - len(coming)) // max(1, len(coming)))
        for number in range(n_wrong):
            _add_chain(tree, [_other(coming[0], number), *coming[1:]] if coming else [], budget)
        _add_chain(tree, coming, budget)
        return tree


class AlwaysWrong(_Knowing):
    """Never drafts what is said: two branches of other tokens."""

    def _draft(self, text: list[TokenId], budget: int) -> DraftTree:
        tree = DraftTree(text[-1])
        coming = self._coming(text)
        for number in range(2):
            _add_chain(tree, [_other(token, number) for token in coming], budget)
        return tree


class AlwaysRight(_Knowing):
    """Drafts what will be said."""

    def _draft(self, text: list[TokenId], budget: int) -> DraftTree:
        tree = DraftTree(text[-1])
        _add_chain(tree, self._coming(text), budget)
        return tree


def _other(token: TokenId, number: int) -> TokenId:
    return token - 1 - number if token > 1 + number else token + 1 + number
