"""What a grammar allows next, without asking about every token of the vocabulary.

llama.cpp tests tokens one by one, which takes a third of a decode step of a small model for
49,000 tokens, and more than one for 262,000. Two things make most of that needless:

- Usually one of the likeliest tokens is allowed, and the others do not matter.
- If the grammar forbids ``,`` it forbids every token that begins with ``,``. So tokens of one
  and of two characters are tested first, and longer ones only where those are allowed.

Neither changes what is chosen: the answers are llama.cpp's own, for fewer questions.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Mapping
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import JSON_GBNF
from numpy.typing import NDArray

from racer_local.backend.model import LlamaModel
from racer_local.backend.native import clear_native_errors, last_native_error
from racer_local.errors import ConfigError
from racer_local.speculation.tree import ROOT, DraftTree, NodeId, TokenId

__all__ = ["CANDIDATE", "Grammar", "candidate_array", "json_grammar", "valid_json"]

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)], align=True)
# Likeliest tokens that are tested before all others.
_N_LIKELY = 64
# Reading the pieces of the whole vocabulary takes as long as testing them all this many times.
_N_BEFORE_READING = 6

# Copying a grammar takes time with its length; most take 20 us.
_MAX_COPIES = 32
_SMALL = 8_000

_Ids = NDArray[np.int32]
# Logits of which only the largest is looked at first.
_GROUP = 256


def candidate_array(candidates: NDArray[np.void]) -> llama_cpp.llama_token_data_array:
    """Wrap candidates for a native sampler; they stay the caller's."""
    pointer = candidates.ctypes.data_as(llama_cpp.llama_token_data_p)
    return llama_cpp.llama_token_data_array(
        data=pointer, size=len(candidates), selected=-1, sorted=False
    )


def valid_json(grammar: str) -> str:
    """Forbid raw control characters where upstream's rule for JSON strings lets them through."""
    return grammar.replace('char ::= [^"\\\\] |', 'char ::= [^"\\\\\\x7F\\x00-\\x1F] |')


def json_grammar(schema: Mapping[str, Any] | None) -> str:
    """Return the GBNF source of the JSON that meets a schema; None is any JSON.

    Unlike in chats, a schema that upstream cannot read is not quietly taken for any JSON: what
    its converter raises (of whatever kind) is raised.
    """
    if schema is None:
        return valid_json(JSON_GBNF)
    grammar = llama_cpp.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)
    return valid_json(grammar._grammar)


class Grammar:
    """A GBNF grammar and how far the text has come in it."""

    def __init__(self, model: LlamaModel, source: str) -> None:
        """Begin at ``root``.

        Raises:
            ConfigError: the grammar cannot be read.
        """
        clear_native_errors()
        vocab = llama_cpp.llama_model_get_vocab(model.handle)
        handle = llama_cpp.llama_sampler_init_grammar(vocab, source.encode("utf-8"), b"root")
        if not handle:
            reason = last_native_error() or "llama.cpp gave no reason"
            raise ConfigError(f"the grammar could not be read: {reason}")
        self._own(handle)
        self._model = model
        self._everything = np.arange(model.n_vocab, dtype=np.int32)
        # Rules about token ids are written in angle brackets; characters decide nothing there.
        self._is_by_character = "<" not in source
        self._is_small = len(source) <= _SMALL
        self._one = np.zeros(1, CANDIDATE)

    def _own(self, handle: object) -> None:
        self._handle = handle
        self._close = weakref.finalize(self, llama_cpp.llama_sampler_free, handle)

    def _after(self, token: TokenId) -> Grammar:
        """Return a copy that has gone on by an allowed token."""
        copy = Grammar.__new__(Grammar)
        copy.__dict__.update(self.__dict__)
        copy._own(llama_cpp.llama_sampler_clone(self._handle))
        copy.accept(token)
        return copy

    def allows(self, token: TokenId) -> bool:
        """Whether ``token`` may come next."""
        self._one[0] = (token, 0.0, 0.0)
        array = candidate_array(self._one)
        llama_cpp.llama_sampler_apply(self._handle, ctypes.byref(array))
        return bool(self._one["logit"][0] == 0.0)

    def allowed_of(self, tokens: _Ids) -> _Ids:
        """Return those of ``tokens`` that may come next, in their order."""
        candidates = np.zeros(len(tokens), CANDIDATE)
        candidates["id"] = tokens
        array = candidate_array(candidates)
        llama_cpp.llama_sampler_apply(self._handle, ctypes.byref(array))
        allowed: _Ids = tokens[candidates["logit"] == 0.0]
        return allowed

    def allowed(self) -> _Ids:
        """Return all tokens that may come next, ascending."""
        prefixes = self._model.prefixes
        if not self._is_by_character or not prefixes.is_worth_reading(_N_BEFORE_READING):
            return self.allowed_of(self._everything)
        prefixes.read(self._model.pieces())
        found = [level := self.allowed_of(prefixes.roots)]
        while len(level):
            found.append(level := self.allowed_of(prefixes.longer(level)))
        return np.sort(np.concatenate(found))

    def best(self, logits: NDArray[np.float32]) -> TokenId | None:
        """Return the likeliest token that may come next, the lowest id among equals."""
        best = int(logits.argmax())
        if self.allows(best):
            return best
        for tokens in (_likely(logits, _N_LIKELY).astype(np.int32), None):
            allowed = self.allowed() if tokens is None else self.allowed_of(tokens)
            if len(allowed) and np.isfinite(logits[allowed].max()):
                return int(allowed[logits[allowed].argmax()])
        return None

    def likeliest(self, logits: NDArray[np.float32], n: int) -> _Ids:
        """Return tokens that may come next, the ``n`` likeliest among them, ascending."""
        tokens = self.allowed_of(_likely(logits, n + _N_LIKELY).astype(np.int32))
        return tokens if len(tokens) >= n else self.allowed()

    def forbidden(self, tree: DraftTree) -> set[NodeId]:
        """Return draft nodes that may not come, or not there; nothing is said of those below.

        In a large tree or grammar only the nodes near the root are looked at.
        """
        found: set[NodeId] = set()
        states = {ROOT: self}
        n_copies = _MAX_COPIES if self._is_small else 0
        for node in range(1, len(tree)):
            before = states.get(tree.parents[node])
            if before is None:
                continue
            token = tree.tokens[node]
            if not before.allows(token):
                found.add(node)
            elif n_copies and tree.children(node) and not self._model.is_end(token):
                n_copies -= 1
                states[node] = before._after(token)
        del states[ROOT]
        for state in states.values():
            state.close()
        return found

    def accept(self, token: TokenId) -> None:
        """Go on by an allowed token; a forbidden one would end the process."""
        llama_cpp.llama_sampler_accept(self._handle, token)

    def close(self) -> None:
        """Free it; a second call does nothing."""
        self._close()


def _likely(logits: NDArray[np.float32], n: int) -> NDArray[np.intp]:
    """Return tokens, ascending: the ``n`` likeliest, all that tie with them, and some more."""
    n_groups = len(logits) // _GROUP
    if n_groups <= n:
        return np.arange(len(logits))
    # The n-th largest of the groups' maxima is no larger than the n-th largest of all.
    maxima = logits[: n_groups * _GROUP].reshape(_GROUP, n_groups).max(axis=0)
    maxima.partition(n_groups - n)
    found: NDArray[np.intp] = (logits >= maxima[n_groups - n]).nonzero()[0]
    return found
