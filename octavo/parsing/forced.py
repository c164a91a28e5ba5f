"""Calls that a request demands (tool_choice "required" or a function's name): their schema, and how they are read.

As in vLLM, the model then writes no format of its own but JSON that a grammar forces: `[{"name": ..., "parameters":
{...}}]`, or for a named function its arguments alone. So a model that never learnt to call makes valid calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.parsing.formats import CallBody, CallContext, ToolFormat
from octavo.parsing.interface import Tool
from octavo.parsing.json_calls import JsonCalls
from octavo.parsing.json_text import read_container
from octavo.parsing.reader import MalformedCallError, Steps

# Keywords whose value is not a schema, and those whose value maps names of the user's to schemas.
_NO_SCHEMAS = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired"})
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_MAX_DEPTH = 64


def forced_calls_schema(tools: Sequence[Tool], function_name: str | None, *, parallel: bool = True) -> dict[str, Any]:
    """Return the JSON schema of an output that calls.

    function_name: the one that has to be called; its arguments are the output. None: any, and the output is an array of
    `{"name", "parameters"}`, of one call when not `parallel`
    tools: not empty; function_name is one of them. Raises InvalidRequestError for a schema nested too deep.
    """
    if function_name is not None:
        return _object_schema(next(tool for tool in tools if tool.name == function_name))
    definitions: dict[str, Any] = {}
    calls = [_call_schema(index, tool, definitions) for index, tool in enumerate(tools)]
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": calls[0] if len(calls) == 1 else {"anyOf": calls},
    }
    if not parallel:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return schema


def forced_calls_format(function_name: str | None) -> ToolFormat:
    """Return the format of an output that follows `forced_calls_schema`."""
    if function_name is not None:
        return ToolFormat("forced", ArgumentsOnly(function_name), bare=("{",), is_forced=True)
    return ToolFormat("forced", JsonCalls(), bare=("[",), is_forced=True)


@dataclass(frozen=True, slots=True)
class ArgumentsOnly(CallBody):
    """Arguments of a call whose function is known beforehand."""

    function_name: str

    def read(self, context: CallContext) -> Steps[None]:
        if context.writer.num_calls:
            raise MalformedCallError  # one call is all there can be; more text is content
        context.writer.start_call(self.function_name)
        yield from read_container(context.reader, context.writer.arguments)
        context.writer.end_call()


def _object_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments; they are an object even where the schema does not say so."""
    schema = dict(tool.parameters or {})
    if not any(keyword in schema for keyword in ("type", "$ref", "anyOf", "oneOf", "allOf")):
        schema["type"] = "object"
    return schema


def _call_schema(index: int, tool: Tool, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a call of one tool; one with references moves to `definitions`, so that they still point."""
    parameters = _object_schema(tool)
    place = f"tool_{index}"
    moved = _moved(parameters, f"#/$defs/{place}", _MAX_DEPTH)
    if moved != parameters:
        definitions[place] = moved
        parameters = {"$ref": f"#/$defs/{place}"}
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "const": tool.name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str, depth: int) -> Any:
    """Return a schema that is no longer a document of its own but stands at `place`: references inside it follow."""
    if depth == 0:
        raise InvalidRequestError(f"a tool's parameters must not be nested more than {_MAX_DEPTH} deep", "tools")
    if isinstance(schema, list):
        return [_moved(item, place, depth - 1) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in ("$schema", "$id") and isinstance(value, str):
            continue
        if keyword == "$ref" and isinstance(value, str):
            result[keyword] = place + value[1:] if value.startswith("#") else value
        elif keyword in _NO_SCHEMAS:
            result[keyword] = value
        elif keyword in _NAMED_SCHEMAS and isinstance(value, Mapping):
            result[keyword] = {name: _moved(one, place, depth - 1) for name, one in value.items()}
        else:
            result[keyword] = _moved(value, place, depth - 1)
    return result
