"""Which functions a request lets the model call, and whether it must: three APIs' spellings of one thing, checked.

The common form is that of OpenAI's chat completions, which chat templates know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from octavo.errors import InvalidRequestError
from octavo.parsing.interface import Tool
from octavo.types.sampling_checks import wrong

ToolMode = Literal["none", "auto", "required", "function"]
MAX_NAME_CHARS = 256
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class ToolWish:
    """What a request says of tools.

    tools: each {"type": "function", "function": {"name", "description", "parameters"}}; those that may be called
    mode: none: no calls; auto: as the model likes; required: at least one; function: one call, of `function`
    parallel: several calls in one answer are welcome
    strict: functions whose arguments must follow their schema even where the model may choose
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    mode: ToolMode = "none"
    function: str | None = None
    parallel: bool = True
    strict: frozenset[str] = frozenset()

    @property
    def is_forced(self) -> bool:
        return self.mode in ("required", "function")

    @property
    def functions(self) -> tuple[Tool, ...]:
        """The tools as parsers know them."""
        functions = (tool["function"] for tool in self.tools)
        return tuple(Tool(function["name"], function.get("parameters")) for function in functions)

    @property
    def needs_grammar(self) -> bool:
        return self.is_forced or (self.mode == "auto" and bool(self.strict))


NO_TOOLS = ToolWish()


# -- OpenAI's chat completions -----------------------------------------------------------------------------------------


def chat_tools(
    tools: Sequence[Mapping[str, Any]] | None, tool_choice: object, parallel_tool_calls: bool | None
) -> ToolWish:
    """Return the wish of a chat completion; raises InvalidRequestError that names the place."""
    if tools is not None and not tools:
        raise InvalidRequestError("tools must not be an empty list; leave it out", "tools")
    return _wish([_chat_function(i, tool) for i, tool in enumerate(tools or ())], tool_choice, parallel_tool_calls)


def _chat_function(index: int, tool: object) -> Mapping[str, Any]:
    where = f"tools[{index}]"
    _check_kind(where, tool)
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        raise wrong(f"{where}.function", "an object with the function's name and parameters", function, "tools")
    return _function(f"{where}.function", function, "parameters")


# -- OpenAI's responses ------------------------------------------------------------------------------------------------


def response_tools(
    tools: Sequence[Mapping[str, Any]] | None, tool_choice: object, parallel_tool_calls: bool | None
) -> ToolWish:
    """Return the wish of a request to /v1/responses, whose functions are not wrapped."""
    functions = []
    for index, tool in enumerate(tools or ()):
        _check_kind(f"tools[{index}]", tool)
        functions.append(_function(f"tools[{index}]", tool, "parameters"))
    if not functions and tool_choice in ("auto", "none"):
        tool_choice = None
    return _wish(functions, tool_choice, parallel_tool_calls)


# -- Anthropic's messages ----------------------------------------------------------------------------------------------

_ANTHROPIC_MODES: Mapping[str, ToolMode] = {"auto": "auto", "any": "required", "tool": "function", "none": "none"}


def message_tools(tools: Sequence[Mapping[str, Any]] | None, tool_choice: Mapping[str, Any] | None) -> ToolWish:
    """Return the wish of a request to /v1/messages."""
    functions = []
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        kind = tool.get("type") or "custom"
        if kind != "custom":
            raise _hosted(where, kind, "of your own (name, description, input_schema)")
        functions.append(_function(where, {**tool, "parameters": tool.get("input_schema")}, "input_schema"))
    _check_names(functions)
    choice = tool_choice or {}
    kind = choice.get("type", "auto" if functions else "none")
    mode = _ANTHROPIC_MODES.get(kind) if isinstance(kind, str) else None
    if mode is None:
        raise wrong("tool_choice.type", "auto, any, tool or none", kind, "tool_choice")
    if mode in ("required", "function") and not functions:
        raise InvalidRequestError("tool_choice needs tools", "tool_choice")
    name = _known_name("tool_choice.name", choice.get("name"), functions) if mode == "function" else None
    one_at_a_time = choice.get("disable_parallel_tool_use")
    if not isinstance(one_at_a_time, (bool, type(None))):
        raise wrong("tool_choice.disable_parallel_tool_use", "true or false", one_at_a_time, "tool_choice")
    parallel = not one_at_a_time
    return _new_wish(functions, mode if functions else "none", name, parallel)


# -- what they share ---------------------------------------------------------------------------------------------------


def _check_kind(where: str, tool: object) -> None:
    if not isinstance(tool, Mapping):
        raise wrong(where, "an object", tool, "tools")
    kind = tool.get("type", "function")
    if kind != "function":
        raise _hosted(where, kind, 'of type "function"')


def _hosted(where: str, kind: object, way_out: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{where}: tools of type {str(kind)[:80]} are not supported, because this server has none of its own; use "
        f"functions {way_out}",
        "tools",
    )


def _function(where: str, function: Mapping[str, Any], schema_name: str) -> Mapping[str, Any]:
    """Return a function with its name, description, parameters and strict, checked."""
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise wrong(f"{where}.name", f"text of 1 to {MAX_NAME_CHARS} printable characters", name, "tools")
    description, strict, parameters = (function.get(key) for key in ("description", "strict", "parameters"))
    if description is not None and not isinstance(description, str):
        raise wrong(f"{where}.description", "text", description, "tools")
    if strict is not None and not isinstance(strict, bool):
        raise wrong(f"{where}.strict", "true or false", strict, "tools")
    if parameters is None:
        parameters = _NO_PARAMETERS
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise wrong(f"{where}.{schema_name}", 'a JSON schema of type "object"', parameters, "tools")
    if not isinstance(parameters.get("properties", {}), Mapping):
        raise wrong(f"{where}.{schema_name}.properties", "an object", parameters["properties"], "tools")
    required = parameters.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise wrong(f"{where}.{schema_name}.required", "a list of names", required, "tools")
    return {"name": name, "description": description, "parameters": parameters, "strict": bool(strict)}


def _wish(functions: list[Mapping[str, Any]], tool_choice: object, parallel_tool_calls: bool | None) -> ToolWish:
    _check_names(functions)
    parallel = parallel_tool_calls is not False
    if isinstance(tool_choice, Mapping) and tool_choice.get("type") == "allowed_tools":
        allowed = tool_choice.get("allowed_tools", tool_choice)
        functions = _allowed(allowed, functions)
        tool_choice = allowed["mode"]
    if not functions:
        if tool_choice not in (None, "none"):
            raise InvalidRequestError("tool_choice needs tools", "tool_choice")
        return NO_TOOLS
    if tool_choice is None:
        tool_choice = "auto"
    if tool_choice in ("auto", "none", "required"):
        return _new_wish(functions, tool_choice, None, parallel)
    if not isinstance(tool_choice, Mapping) or tool_choice.get("type", "function") != "function":
        expected = 'none, auto, required, or {"type": "function", "function": {"name": …}}'
        raise wrong("tool_choice", expected, tool_choice)
    function = tool_choice.get("function", tool_choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    return _new_wish(functions, "function", _known_name("tool_choice", name, functions), parallel)


def _new_wish(functions: Sequence[Mapping[str, Any]], mode: ToolMode, name: str | None, parallel: bool) -> ToolWish:
    tools = tuple(_as_tool(function) for function in functions)
    strict = frozenset(function["name"] for function in functions if function["strict"])
    return ToolWish(tools, mode, name, parallel and mode != "function", strict)


def _as_tool(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool as templates expect it, without what does not concern the model."""
    shown = {key: function[key] for key in ("name", "description", "parameters") if function[key] is not None}
    return {"type": "function", "function": shown}


def _check_names(functions: Sequence[Mapping[str, Any]]) -> None:
    seen: set[str] = set()
    for index, function in enumerate(functions):
        if function["name"] in seen:
            raise InvalidRequestError(f"tools[{index}]: there are two functions named {function['name']!r}", "tools")
        seen.add(function["name"])


def _known_name(where: str, name: object, functions: Sequence[Mapping[str, Any]]) -> str:
    names = [function["name"] for function in functions]
    if not isinstance(name, str) or name not in names:
        raise wrong(where, f"the name of one of the tools ({', '.join(names[:20])})", name, "tool_choice")
    return name


def _allowed(choice: object, functions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the functions that an allowed_tools choice leaves; its mode is checked too."""
    expected = '{"mode": "auto" or "required", "tools": [{"type": "function", …}, …]}'
    if not isinstance(choice, Mapping) or choice.get("mode") not in ("auto", "required"):
        raise wrong("tool_choice", f"allowed_tools with {expected}", choice)
    entries = choice.get("tools")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise wrong("tool_choice.tools", "a non-empty list of functions by name", entries, "tool_choice")
    names = set()
    for index, entry in enumerate(entries):
        function = entry.get("function", entry)
        name = function.get("name") if isinstance(function, Mapping) else None
        names.add(_known_name(f"tool_choice.tools[{index}]", name, functions))
    return [function for function in functions if function["name"] in names]
