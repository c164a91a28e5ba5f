"""Tool calls in answers, whole and as the deltas of a stream."""

from __future__ import annotations

from typing import Any

import msgspec

TOOLS_SCHEMA: dict[str, Any] = {
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["type", "function"],
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "description": {"type": "string"},
                    "parameters": {"type": "object"},
                    "strict": {"type": "boolean"},
                },
            },
        },
    },
}
TOOL_CHOICE_SCHEMA: dict[str, Any] = {
    "oneOf": [
        {"type": "string", "enum": ["none", "auto", "required"]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
            },
        },
    ]
}


class FunctionCall(msgspec.Struct):
    """A function to call. arguments: JSON text, in part when the answer ended inside it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """One call; the message with its result refers to the id."""

    id: str
    function: FunctionCall
    type: str = "function"


class FunctionCallDelta(msgspec.Struct, omit_defaults=True):
    """What is new of a function to call."""

    arguments: str
    name: str | None = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """What is new of a call: first its id, type and name, then arguments bit by bit."""

    index: int
    function: FunctionCallDelta
    id: str | None = None
    type: str | None = None
