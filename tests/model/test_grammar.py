"""What a grammar allows: fewer questions than tokens, the same answers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import LlamaGrammar

from racer_local.backend.grammar import Grammar
from racer_local.backend.model import LlamaModel
from racer_local.config import ModelConfig
from racer_local.errors import ConfigError
from racer_local.speculation.tree import ROOT, DraftTree, Source

SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "größe": {"type": "string"},
            "名": {"enum": ["grün", "青い", "🚀", "red", "redder"]},
            "n": {"type": "number"},
        },
        "required": ["größe", "名", "n"],
    },
    "minItems": 1,
}
GRAMMARS = {
    "json": lambda: LlamaGrammar.from_json_schema(json.dumps(SCHEMA), verbose=False)._grammar,
    "all but some": lambda: 'root ::= [^a-mé🚀]+ "é"? "." root',
    "one string": lambda: 'root ::= "colour: 青い 🚀 and then some"',
    "angle brackets": lambda: 'root ::= ("<b>" [a-z]+ "</b>\\n")+',
}


@pytest.fixture(scope="module")
def smol_vocabulary(smol_path: Path) -> Iterator[LlamaModel]:
    model = LlamaModel(ModelConfig(path=smol_path), vocab_only=True)
    yield model
    model.close()


@pytest.fixture(scope="module")
def gemma_vocabulary(gemma_path: Path) -> Iterator[LlamaModel]:
    model = LlamaModel(ModelConfig(path=gemma_path), vocab_only=True)
    yield model
    model.close()


def check_a_walk(model: LlamaModel, source: str, n_steps: int) -> None:
    everything = np.arange(model.n_vocab, dtype=np.int32)
    generator = np.random.default_rng(1)
    chooser = random.Random(1)
    grammar = Grammar(model, source)
    # At first all are asked about: that must be over.
    for _ in range(10):
        grammar.allowed()
    for _ in range(n_steps):
        expected = grammar.allowed_of(everything)
        assert np.array_equal(grammar.allowed(), expected)
        logits = generator.standard_normal(model.n_vocab).astype(np.float32)
        if not len(expected):
            assert grammar.best(logits) is None
            break
        assert grammar.best(logits) == expected[logits[expected].argmax()]
        top = expected[np.argsort(-logits[expected], kind="stable")[:40]]
        assert set(top) <= set(grammar.likeliest(logits, 40)) <= set(expected)
        token = chooser.choice([int(token) for token in expected])
        assert grammar.allows(token)
        if model.is_end(token):
            break
        grammar.accept(token)
    grammar.close()
    grammar.close()


@pytest.mark.parametrize("name", GRAMMARS)
def test_every_step_allows_what_asking_about_all_tokens_allows(
    smol_vocabulary: LlamaModel, name: str
) -> None:
    check_a_walk(smol_vocabulary, GRAMMARS[name](), 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAMMARS)
def test_the_same_in_a_vocabulary_of_another_kind(gemma_vocabulary: LlamaModel, name: str) -> None:
    check_a_walk(gemma_vocabulary, GRAMMARS[name](), 25)


def test_characters_may_begin_in_one_token_and_end_in_the_next(
    smol_vocabulary: LlamaModel,
) -> None:
    model = smol_vocabulary
    grammar = Grammar(model, 'root ::= [^x]+ "x"')
    everything = np.arange(model.n_vocab, dtype=np.int32)
    pieces = [model.piece(int(token)) for token in everything]
    first = pieces.index("🚀".encode()[:1])
    for _ in range(10):
        grammar.allowed()
    grammar.accept(first)
    allowed = grammar.allowed()
    assert np.array_equal(allowed, grammar.allowed_of(everything))
    assert 0 < len(allowed) < 2000
    grammar.close()


def test_a_grammar_that_cannot_be_read_names_the_reason(smol_vocabulary: LlamaModel) -> None:
    with pytest.raises(ConfigError, match="could not be read"):
        Grammar(smol_vocabulary, "root ::= (")


def test_forbidden_drafts_are_found_wherever_they_are(smol_vocabulary: LlamaModel) -> None:
    model = smol_vocabulary

    def token(text: str) -> int:
        [found] = model.tokenize(text, add_special=False)
        return found

    grammar = Grammar(model, 'root ::= "a" ("b" | "cat" | " dog") "!"+')
    grammar.accept(token("a"))
    tree = DraftTree(token("a"))
    dog = tree.add(ROOT, token(" dog"), Source.RETRIEVAL)
    end = tree.add(tree.add(dog, token("!"), Source.RETRIEVAL), model.eos or 0, Source.RETRIEVAL)
    tree.add(end, token("b"), Source.RETRIEVAL)
    too_early = tree.add(ROOT, token("!"), Source.LOGITS)
    tree.add(too_early, token("!"), Source.LOGITS)
    twice = tree.add(dog, token(" dog"), Source.LOGITS)
    assert grammar.forbidden(tree) == {too_early, twice}
    # Nothing has moved on.
    assert grammar.allows(token(" dog"))
    assert not grammar.allows(token("!"))
    grammar.close()
