"""Fifty JSON schemas, greedy and sampled, with drafts: what comes out is valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_cpp import LlamaGrammar

from racer_local import RacerLlama


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def enum(*values: Any) -> dict[str, Any]:
    return {"enum": list(values)}


def array(items: Any, low: int = 1, high: int = 2) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


# Lengths are bounded, so that an answer of a small model ends.
WORD = {"type": "string", "minLength": 1, "maxLength": 6}
YES_NO = {"type": "boolean"}
NULL = {"type": "null"}
DIGIT = enum(1, 2, 3, 4, 5)
COLOUR = enum("red", "green", "blue")
UNICODE = enum("grün", "青い", "🚀", "é")
LEAVES = {"word": WORD, "yes": YES_NO, "digit": DIGIT, "colour": COLOUR, "unicode": UNICODE}
SCHEMAS: dict[str, dict[str, Any]] = {
    **{f"{name} alone": obj(value=leaf) for name, leaf in LEAVES.items()},
    **{f"array of {name}": obj(values=array(leaf)) for name, leaf in LEAVES.items()},
    **{f"{name} nested": obj(outer=obj(inner=leaf)) for name, leaf in LEAVES.items()},
    **{f"two levels of {name}": obj(a=obj(b=obj(c=leaf))) for name, leaf in LEAVES.items()},
    **{f"objects with {name}": obj(rows=array(obj(x=leaf))) for name, leaf in LEAVES.items()},
    **{
        f"{name} or null": obj(v={"anyOf": [leaf, {"type": "null"}]})
        for name, leaf in LEAVES.items()
    },
    **{f"{name} and colour": obj(a=leaf, colour=COLOUR) for name, leaf in LEAVES.items()},
    **{f"matrix of {name}": obj(m=array(array(leaf))) for name, leaf in LEAVES.items()},
    **{f"top array of {name}": array(leaf, 2, 3) for name, leaf in LEAVES.items()},
    **{
        f"unicode key of {name}": obj(**{"größe": leaf, "名": YES_NO})
        for name, leaf in LEAVES.items()
    },
}


def is_valid(value: Any, schema: dict[str, Any]) -> bool:
    """Check what is used above of JSON schema, and nothing else."""
    if "anyOf" in schema:
        return any(is_valid(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "object":
        keys = schema["properties"]
        return set(value) == set(keys) and all(is_valid(value[k], keys[k]) for k in keys)
    if kind == "array":
        is_sized = schema["minItems"] <= len(value) <= schema["maxItems"]
        return is_sized and all(is_valid(item, schema["items"]) for item in value)
    if kind == "string":
        return isinstance(value, str) and schema["minLength"] <= len(value) <= schema["maxLength"]
    return value is None if kind == "null" else isinstance(value, bool)


@pytest.fixture(scope="module")
def llama(smol_path: Path) -> Iterator[RacerLlama]:
    model = RacerLlama(str(smol_path), n_ctx=512, draft="racer", budget=6)
    yield model
    model.close()


def test_there_are_fifty() -> None:
    assert len(SCHEMAS) == 50


@pytest.mark.parametrize(
    "name",
    [
        # Every kind is there with some of the leaves.
        pytest.param(name, marks=pytest.mark.slow) if i % 6 else name
        for i, name in enumerate(SCHEMAS)
    ],
)
def test_a_schema_is_kept_to_greedily_and_sampled(llama: RacerLlama, name: str) -> None:
    schema = SCHEMAS[name]
    grammar = LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)
    for temperature in (0.0, 1.0):
        answer = llama(
            "Write JSON.\n", grammar=grammar, max_tokens=110, temperature=temperature, seed=3
        )["choices"][0]
        # The schema's own grammar allows any amount of white space: then the limit ends it.
        if answer["finish_reason"] == "stop":
            assert is_valid(json.loads(answer["text"]), schema), answer["text"]
        else:
            assert answer["finish_reason"] == "length"


def test_most_answers_end_by_themselves_and_drafts_are_taken(llama: RacerLlama) -> None:
    schema = obj(rows=array(obj(name=WORD, colour=COLOUR, ready=YES_NO), 2, 2))
    grammar = LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)
    answer = llama("Write JSON.\n", grammar=grammar, max_tokens=110, temperature=0)["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert is_valid(json.loads(answer["text"]), schema)
    assert llama.last_stats is not None
    assert llama.last_stats.n_accepted > 5


CONTACTS = array(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    },
    2,
    3,
)
REPEAT = '[{"name": "Ann", "age": 31}, {"name": "Bob", "age": 42}]\nRepeat the JSON above:\n'
EXTRACT = (
    "Ann Berg (31, ann.berg@example.com) and Bob Tran (42, bob.tran@example.com) met Cleo Diaz, "
    "who is 27 and can be reached at cleo.diaz@example.com.\nThese people as JSON:\n"
)


def is_contact(value: Any) -> bool:
    return (
        set(value) == {"name", "age"}
        and isinstance(value["name"], str)
        and isinstance(value["age"], int)
    )


@pytest.mark.parametrize(
    ("prompt", "n_seeds"),
    [
        pytest.param(REPEAT, 2, id="repeat"),
        pytest.param(REPEAT, 20, id="repeat with many seeds", marks=pytest.mark.slow),
        pytest.param(EXTRACT, 20, id="extract with many seeds", marks=pytest.mark.slow),
    ],
)
def test_contacts_are_the_same_without_drafts(
    llama: RacerLlama, smol_path: Path, prompt: str, n_seeds: int
) -> None:
    grammar = LlamaGrammar.from_json_schema(json.dumps(CONTACTS), verbose=False)
    exact = RacerLlama(str(smol_path), n_ctx=512, draft="racer", budget=6, exact=True)
    plain = RacerLlama(str(smol_path), n_ctx=512, draft="off", exact=True)
    n_accepted = 0
    for seed in range(n_seeds):
        # The first one is greedy.
        options = {"max_tokens": 80, "temperature": 0.8 if seed else 0.0, "seed": seed}
        told = exact(prompt, grammar=grammar, **options)["choices"][0]
        assert exact.last_stats is not None
        n_accepted += exact.last_stats.n_accepted
        assert told == plain(prompt, grammar=grammar, **options)["choices"][0]
        for choice in (told, llama(prompt, grammar=grammar, **options)["choices"][0]):
            if choice["finish_reason"] == "stop":
                people = json.loads(choice["text"])
                assert 2 <= len(people) <= 3
                assert all(map(is_contact, people)), people
    assert n_accepted > 0
    for opened in (exact, plain):
        opened.close()
