"""What a chat template makes of tools, tool calls and roles, found out by rendering small conversations with it.

Templates differ in ways that nothing declares: whether they describe tools at all, whether they want a call's arguments
as a mapping or as JSON text, which ids they accept. Trying is the one way that works for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.tokenizers.chat_messages import MessageStyle
from octavo.tokenizers.template_budget import TemplateBudget
from octavo.tokenizers.template_source import compile_source

_TOOL_NAME = "octavo_probe_tool"
_KEY = "octavo_probe_key"
_SHORT_ID, _LONG_ID = "probe0001", "chatcmpl-tool-0123456789abcdef"
_RESULT, _SYSTEM = "octavo_probe_result", "octavo_probe_system"
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
        with_tools = self._render([_USER], tools=[_TOOL])
        as_mapping = self._with_call({_KEY: "value"}, _SHORT_ID)
        as_text = None
        if as_mapping is None or f"{{'{_KEY}'" in as_mapping:
            as_text = self._with_call(f'{{"{_KEY}": "value"}}', _SHORT_ID)
        arguments_are_text = as_text is not None and f'{{"{_KEY}"' in as_text
        shown = as_text if arguments_are_text else as_mapping
        # a template may know results and no calls, and the other way round
        plain_result = self._render([_USER, *_result_turns(self._content)])
        system = self._render([{"role": "system", "content": self._content(_SYSTEM)}, _USER])
        style = MessageStyle(
            arguments_are_text=arguments_are_text,
            has_short_call_ids=shown is not None and self._refuses_long_ids(arguments_are_text),
            knows_developer="developer" in self._source,
            writes_calls="tool_calls" in self._source or _holds(shown, _KEY),
            has_tool_role=_holds(shown, _RESULT) or _holds(plain_result, _RESULT),
            text_roles=self._text_roles(),
        )
        return TemplateTraits(_holds(with_tools, _TOOL_NAME), _holds(system, _SYSTEM), style)

    def _with_call(self, arguments: object, call_id: str) -> str | None:
        """Render a turn with a call. Tools are left out, so that the key can only come from the call."""
        return self._render(_call_turns(arguments, call_id, self._content))

    def _refuses_long_ids(self, arguments_are_text: bool) -> bool:
        arguments = f'{{"{_KEY}": "value"}}' if arguments_are_text else {_KEY: "value"}
        return self._with_call(arguments, _LONG_ID) is None

    def _text_roles(self) -> frozenset[str]:
        """Return the roles whose content a template that loops over parts nevertheless writes as it is."""
        if self._template.content_format != "openai":
            return frozenset()
        turns = {
            "system": [{"role": "system", "content": self._content("probe")}, _USER],
            "assistant": [_USER, {"role": "assistant", "content": self._content("probe")}, _USER],
            "tool": _call_turns({_KEY: "value"}, _SHORT_ID, self._content),
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
            "tools": tools,
            "documents": None,
            "add_generation_prompt": True,
            "bos_token": "<s>",
            "eos_token": "</s>",
        }
        try:
            return self._template.render(variables, self._budget)
        except InvalidRequestError:
            return None


def _call_turns(arguments: object, call_id: str, content: Any) -> list[dict[str, Any]]:
    function = {"name": _TOOL_NAME, "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    assistant, result = _result_turns(content, call_id)
    return [_USER, {**assistant, "tool_calls": [call]}, result]


def _result_turns(content: Any, call_id: str = _SHORT_ID) -> list[dict[str, Any]]:
    return [
        {"role": "assistant", "content": content("")},
        {"role": "tool", "content": content(_RESULT), "tool_call_id": call_id, "name": _TOOL_NAME},
    ]


def _holds(text: str | None, part: str) -> bool:
    return text is not None and part in text
