"""What a chat template makes of tools, tool calls and roles, found out by rendering small conversations with it.

Templates differ in ways that nothing declares: whether they describe tools at all, whether they want a call's arguments
as a mapping or as JSON text, which ids they accept. Trying is the one way that works for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from octavo.errors import InvalidRequestError
from octavo.tokenizers.chat_messages import EmptyContent, MessageStyle, empty_content
from octavo.tokenizers.template_budget import TemplateBudget
from octavo.tokenizers.template_source import compile_source

_TOOL_NAME = "octavo_probe_tool"
_KEY = "octavo_probe_key"
_SHORT_ID, _LONG_ID = "probe0001", "chatcmpl-tool-0123456789abcdef"
_RESULT, _FIRST = "octavo_probe_result", "octavo_probe_first"
_PYTHON_PARTS = "'type': 'text'"  # a list of parts that was written where text was expected
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _TOOL_NAME,
        "description": "probe",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}, "required": [_KEY]},
    },
}
_USER: dict[str, Any] = {"role": "user", "content": "probe"}


@dataclass(frozen=True)
class TemplateTraits:
    """How a template treats tools, and how it wants its messages.

    shows_tools: tools that it is given appear in the prompt
    has_system_role: so does a system message
    """

    shows_tools: bool
    has_system_role: bool
    style: MessageStyle


def tool_variables(source: str, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return tools under the names that a template reads: SmolLM3's has one of its own, for the functions alone."""
    variables: dict[str, Any] = {"tools": tools}
    if tools and "xml_tools" in source:
        variables["xml_tools"] = [tool.get("function", tool) for tool in tools]
    return variables


@functools.lru_cache(maxsize=32)
def template_traits(source: str) -> TemplateTraits:
    """Return a template's traits; raises InvalidRequestError only for a template that is not valid Jinja.

    All trials share one budget: a template that wastes it is taken for one without support.
    """
    return _Trials(source).traits()


class _Trials:
    def __init__(self, source: str) -> None:
        self._template = compile_source(source)
        self._source = source
        self._budget = TemplateBudget()

    def traits(self) -> TemplateTraits:
        calls = self._calls()
        # a template may know results and no calls, and the other way round
        plain_result = self._render([_USER, *_result_turns(self._content(""), self._content)])
        with_tools = self._render([_USER], tools=[_TOOL])
        style = MessageStyle(
            arguments_are_text=calls.arguments_are_text,
            has_short_call_ids=calls.text is not None and self._with_call(calls, _LONG_ID) is None,
            knows_developer="developer" in self._source and self._knows("developer"),
            writes_calls="tool_calls" in self._source or _holds(calls.text, _KEY),
            has_tool_role=_holds(calls.text, _RESULT) or _holds(plain_result, _RESULT),
            text_roles=self._text_roles(),
            content_beside_calls=calls.content,
        )
        return TemplateTraits(_holds(with_tools, _TOOL_NAME), self._knows("system"), style)

    def _calls(self) -> _Calls:
        """Find the way in which the template writes calls, the usual one first."""
        tried: list[_Calls] = []
        for content in get_args(EmptyContent):
            for arguments_are_text in (False, True):
                calls = _Calls(arguments_are_text, content)
                text = self._with_call(calls, _SHORT_ID)
                if text is not None:
                    calls = replace(calls, text=text)
                    tried.append(calls)
                if text is not None and _KEY in text and f"{{'{_KEY}'" not in text and f'\\"{_KEY}' not in text:
                    return calls
        return tried[0] if tried else _Calls()

    def _with_call(self, calls: _Calls, call_id: str) -> str | None:
        """Render a turn with a call. Tools are left out, so that the key can only come from the call."""
        arguments: object = f'{{"{_KEY}": "value"}}' if calls.arguments_are_text else {_KEY: "value"}
        call = {"id": call_id, "type": "function", "function": {"name": _TOOL_NAME, "arguments": arguments}}
        content = empty_content(calls.content, self._template.content_format)
        assistant, result = _result_turns(content, self._content, call_id)
        return self._render([_USER, {**assistant, "tool_calls": [call]}, result])

    def _knows(self, role: str) -> bool:
        """Whether a first message of a role is written."""
        text = self._render([{"role": role, "content": self._content(_FIRST)}, _USER])
        return _holds(text, _FIRST)

    def _text_roles(self) -> frozenset[str]:
        """Return the roles whose content a template that loops over parts nevertheless writes as it is."""
        if self._template.content_format != "openai":
            return frozenset()
        turns = {
            "system": [{"role": "system", "content": self._content("probe")}, _USER],
            "developer": [{"role": "developer", "content": self._content("probe")}, _USER],
            "assistant": [_USER, {"role": "assistant", "content": self._content("probe")}, _USER],
            "tool": [_USER, *_result_turns(self._content("probe"), self._content)],
        }
        rendered = {role: self._render(messages) for role, messages in turns.items()}
        return frozenset(role for role, text in rendered.items() if text is not None and _PYTHON_PARTS in text)

    def _content(self, text: str) -> str | list[dict[str, Any]]:
        return text if self._template.content_format == "string" else [{"type": "text", "text": text}]

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: list[dict[str, Any]] | None = None) -> str | None:
        """Return the text, or None for a conversation that the template does not take."""
        variables = {
            "messages": [
                {**message, "content": self._content("probe")} if message is _USER else message for message in messages
            ],
            **tool_variables(self._source, tools),
            "documents": None,
            "add_generation_prompt": True,
            "bos_token": "<s>",
            "eos_token": "</s>",
        }
        try:
            return self._template.render(variables, self._budget)
        except InvalidRequestError:
            return None


@dataclass(frozen=True)
class _Calls:
    """A way of writing calls, and what the template made of it; None when it did not take it."""

    arguments_are_text: bool = False
    content: EmptyContent = "empty"
    text: str | None = None


def _result_turns(empty: Any, content: Any, call_id: str = _SHORT_ID) -> list[dict[str, Any]]:
    return [
        {"role": "assistant", "content": empty},
        {"role": "tool", "content": content(_RESULT), "tool_call_id": call_id, "name": _TOOL_NAME},
    ]


def _holds(text: str | None, part: str) -> bool:
    return text is not None and part in text
