"""Turns schemas and tools of a request into grammars, and refuses those that would cost too much.

llama-cpp-python writes the grammar; it would fall back to any JSON where a schema is wrong, and
that is told the caller here instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from racer_local.backend.grammar import json_grammar
from racer_local.concurrency.time_limit import TooSlowError, time_limit
from racer_local.server.faults import ApiError
from racer_local.server.schema import ChatRequest, Function, ToolChoice

__all__ = ["grammar_for"]

_MAX_COUNT = 2_000
_MAX_PROPERTIES = 200
_MAX_PATTERN = 200
_MAX_GRAMMAR = 256 * 1024
_SECONDS = 2.0
_DEFINITIONS = ("$defs", "definitions")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


def grammar_for(request: ChatRequest) -> str | None:
    """Return the GBNF source that the answer has to keep to; None is free text.

    Raises:
        ApiError: a schema cannot be used.
    """
    if is_call_forced(request):
        functions = request.offered
        if isinstance(request.tool_choice, ToolChoice):
            name = request.tool_choice.function.name
            functions = [function for function in functions if function.name == name]
        return _grammar(_call_schema(functions), "tools")
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return None
    schema = wanted.schema_
    if wanted.type == "json_schema":
        inner = wanted.json_schema
        schema = schema if inner is None else inner.schema_
        if schema is None:
            raise ApiError(
                400,
                "response_format has no schema; it belongs into response_format.json_schema.schema",
                code="invalid_value",
                param="response_format",
            )
    if schema is None:
        return json_grammar(None)
    return _grammar(schema, "response_format")


def is_call_forced(request: ChatRequest) -> bool:
    """Whether the answer has to be a tool call."""
    return request.tool_choice == "required" or isinstance(request.tool_choice, ToolChoice)


def _call_schema(functions: Sequence[Function]) -> dict[str, Any]:
    """Return the schema of a call of one of these functions."""
    choices: list[dict[str, Any]] = []
    # The converter finds definitions by the last word of a reference: names have to be unique.
    shared: dict[str, Any] = {}
    for i, function in enumerate(functions):
        mark = f"f{i}"
        parameters = dict(function.parameters or {})
        for key in _DEFINITIONS:
            for name, schema in dict(parameters.pop(key, None) or {}).items():
                shared[f"{mark}-{name}"] = _moved(schema, mark)
        parameters = _moved(parameters, mark)
        if not {"type", "$ref", "anyOf", "oneOf", "allOf"} & set(parameters):
            parameters = {"type": "object", **parameters}
        shared[mark] = parameters
        choices.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": function.name},
                    "arguments": {"$ref": f"#/$defs/{mark}"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {"anyOf": choices, "$defs": shared}


def _moved(schema: Any, mark: str) -> Any:
    """Return a schema whose references are right where it is a shared definition."""
    if isinstance(schema, Mapping):
        moved = {key: _moved(value, mark) for key, value in schema.items()}
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = _moved_reference(reference, mark)
        return moved
    if isinstance(schema, list):
        return [_moved(item, mark) for item in schema]
    return schema


def _moved_reference(reference: str, mark: str) -> str:
    for key in _DEFINITIONS:
        place = f"#/{key}/"
        if reference.startswith(place):
            return f"#/$defs/{mark}-{reference.removeprefix(place)}"
    return f"#/$defs/{mark}{reference[1:]}"


def _check(schema: Any) -> None:
    """Refuse what would become a huge grammar.

    Raises:
        ValueError: with the reason.
    """
    if isinstance(schema, list):
        for item in schema:
            _check(item)
    if not isinstance(schema, Mapping):
        return
    for key in _COUNTS:
        count = schema.get(key)
        if isinstance(count, int | float) and not 0 <= count <= _MAX_COUNT:
            raise ValueError(f"{key} is {count}; it must be from 0 to {_MAX_COUNT}")
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise ValueError("$ref points outside of the schema")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) > _MAX_PATTERN:
        raise ValueError(f"a pattern is longer than {_MAX_PATTERN} characters")
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and len(properties) > _MAX_PROPERTIES:
        raise ValueError(f"an object has more than {_MAX_PROPERTIES} properties")
    for value in schema.values():
        _check(value)


def _grammar(schema: Mapping[str, Any], param: str) -> str:
    try:
        _check(schema)
        with time_limit(_SECONDS):
            grammar = json_grammar(schema)
        if len(grammar) > _MAX_GRAMMAR:
            raise ValueError("it becomes too large a grammar")
    except TooSlowError:
        reason = "it takes too long to read"
    except RecursionError:
        reason = "it refers to itself without end"
    except Exception as error:  # noqa: BLE001 - the converter raises whatever comes
        reason = str(error) or type(error).__name__
    else:
        return grammar
    raise ApiError(
        400, f"the JSON schema cannot be used: {reason}", code="invalid_schema", param=param
    )
