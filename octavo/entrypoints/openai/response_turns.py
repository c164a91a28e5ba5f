"""Turns of the assistant, put together from items: reasoning, text and calls in a row are one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.entrypoints.openai.protocol.responses import FunctionCallItem, OutputItem, OutputMessage

Turns = list[dict[str, Any]]


def add_assistant_text(turns: Turns, text: str) -> None:
    """Add text to the assistant's turn, or begin a new one if it has text or calls already."""
    turn = _open_turn(turns)
    if turn is None or turn["content"] is not None or "tool_calls" in turn:
        turn = _new_turn(turns)
    turn["content"] = text


def add_assistant_reasoning(turns: Turns, text: str) -> None:
    """Begin a turn of the assistant with reasoning."""
    _new_turn(turns)["reasoning"] = text


def add_assistant_call(turns: Turns, call_id: str, name: str, arguments: str) -> None:
    """Add a call to the assistant's turn."""
    turn = _open_turn(turns) or _new_turn(turns)
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    turn.setdefault("tool_calls", []).append(call)


def turns_of(items: Sequence[OutputItem]) -> Turns:
    """Return the turns that a response's items are."""
    turns: Turns = []
    for item in items:
        if isinstance(item, OutputMessage):
            add_assistant_text(turns, "".join(part.text for part in item.content))
        elif isinstance(item, FunctionCallItem):
            add_assistant_call(turns, item.call_id, item.name, item.arguments)
        else:
            add_assistant_reasoning(turns, "".join(part.text for part in item.content))
    return turns


def _open_turn(turns: Turns) -> dict[str, Any] | None:
    return turns[-1] if turns and turns[-1]["role"] == "assistant" else None


def _new_turn(turns: Turns) -> dict[str, Any]:
    turns.append({"role": "assistant", "content": None})
    return turns[-1]
