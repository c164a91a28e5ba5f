"""From Anthropic's requests to conversations: turns made of blocks become the messages that chat templates know."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.entrypoints.anthropic.protocol import CountTokensRequest
from octavo.entrypoints.openai.conversations import Conversation, template_arguments
from octavo.entrypoints.tool_requests import message_tools
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.parsing.reasoning import REASONING_SWITCHES
from octavo.types.sampling_checks import as_int, wrong

MIN_THINKING_BUDGET = 1024
_MULTIMODAL = "multimodal input is not built"
_HOSTED = "this server has no tools of its own"
_UNBUILT_BLOCKS: Mapping[str, str] = {
    "image": _MULTIMODAL,
    "document": _MULTIMODAL,
    "search_result": _MULTIMODAL,
    "server_tool_use": _HOSTED,
    "web_search_tool_result": _HOSTED,
    "redacted_thinking": "only the service that encrypted it can read it",
}


def conversation_of(request: CountTokensRequest, chat_template_kwargs: Mapping[str, Any] | None) -> Conversation:
    """Return the conversation with the system prompt as its first message; a last assistant turn is continued."""
    if not request.messages:
        raise InvalidRequestError("messages must not be empty", "messages")
    messages: list[dict[str, Any]] = []
    for index, message in enumerate(request.messages):
        _add_turn(messages, f"messages[{index}]", message)
    continues = request.messages[-1].get("role") == "assistant"
    if continues and "tool_calls" in messages[-1]:
        raise InvalidRequestError("the last turn calls tools; send their results (tool_result) after it", "messages")
    if request.system:
        messages.insert(0, {"role": "system", "content": _texts("system", request.system)})
    return Conversation(
        messages,
        not continues,
        continues,
        chat_template_kwargs=_template_arguments(request, chat_template_kwargs),
        tools=message_tools(request.tools, request.tool_choice),
    )


def _add_turn(messages: list[dict[str, Any]], where: str, message: Mapping[str, Any]) -> None:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise wrong(f"{where}.role", '"user", "assistant" or "system"', role)
    where = f"{where}.content"
    if isinstance(content, str):
        messages.append({"role": role, "content": content})
        return
    if role == "system":  # Claude Code's reminders: they stay where they are, so that what is before them stays cached
        messages.append({"role": role, "content": _texts(where, content)})
        return
    blocks = _blocks(where, content)
    if role == "assistant":
        messages.append(_assistant_turn(where, blocks))
    else:
        _add_user_turn(messages, where, blocks)


def _add_user_turn(messages: list[dict[str, Any]], where: str, blocks: Sequence[Mapping[str, Any]]) -> None:
    """Add results of calls, each as a message of its own, and the user's text, in the order in which they come."""
    texts: list[dict[str, str]] = []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        if block.get("type") != "tool_result":
            texts.append(_text_part(place, block))
            continue
        if texts:
            messages.append({"role": "user", "content": texts})
            texts = []
        messages.append(_tool_result(place, block))
    if texts:
        messages.append({"role": "user", "content": texts})


def _tool_result(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    call_id = block.get("tool_use_id")
    if not isinstance(call_id, str):
        raise wrong(f"{where}.tool_use_id", "the id of a tool_use block", call_id)
    content = _texts(f"{where}.content", block.get("content") or "")
    text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
    is_error = block.get("is_error")
    if not isinstance(is_error, (bool, type(None))):
        raise wrong(f"{where}.is_error", "true or false", is_error)
    if is_error:
        text = f"Error: {text}"  # templates have no other place for it
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _assistant_turn(where: str, blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    texts: list[dict[str, str]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        if block.get("type") == "tool_use":
            calls.append(_tool_call(place, block))
        elif block.get("type") == "thinking":
            if not isinstance(block.get("thinking"), str):
                raise wrong(f"{place}.thinking", "text", block.get("thinking"))
            thoughts.append(block["thinking"])
        else:
            texts.append(_text_part(place, block))
    turn: dict[str, Any] = {"role": "assistant", "content": texts or None}
    if calls:
        turn["tool_calls"] = calls
    if thoughts:
        turn["reasoning"] = "\n".join(thoughts)
    return turn


def _tool_call(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    call_id, name, arguments = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise wrong(where, '{"type": "tool_use", "id": text, "name": text, "input": object}', block)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _blocks(where: str, content: object) -> list[Mapping[str, Any]]:
    if not isinstance(content, list) or not content:
        raise wrong(where, "text, or a list of content blocks", content)
    for index, block in enumerate(content):
        if not isinstance(block, Mapping):
            raise wrong(f"{where}[{index}]", "a content block", block)
    return content


def _texts(where: str, content: object) -> str | list[dict[str, str]]:
    """Return content for the chat template: text, or parts that are texts."""
    if isinstance(content, str):
        return content
    return [_text_part(f"{where}[{index}]", block) for index, block in enumerate(_blocks(where, content))]


def _text_part(where: str, block: Mapping[str, Any]) -> dict[str, str]:
    kind, text = block.get("type"), block.get("text")
    if isinstance(kind, str) and kind in _UNBUILT_BLOCKS:
        raise UnsupportedError(f"{where}: blocks of type {kind} are not supported: {_UNBUILT_BLOCKS[kind]}")
    if kind != "text" or not isinstance(text, str):
        raise wrong(where, '{"type": "text", "text": …}', block)
    return {"type": "text", "text": text}


# -- thinking ----------------------------------------------------------------------------------------------------------


def thinking_mode(request: CountTokensRequest) -> str | None:
    """Return enabled, disabled or adaptive; None when the request leaves it to the model."""
    if request.thinking is None:
        return None
    mode = request.thinking.get("type")
    if mode not in ("enabled", "disabled", "adaptive"):
        raise wrong("thinking.type", "enabled, disabled or adaptive", mode)
    return str(mode)


def thinking_budget(request: CountTokensRequest, max_tokens: int) -> int | None:
    """Return the most tokens of reasoning, None without a limit; raises InvalidRequestError."""
    if thinking_mode(request) != "enabled" or request.thinking is None:
        return None
    budget = as_int("thinking.budget_tokens", request.thinking.get("budget_tokens"), MIN_THINKING_BUDGET)
    if budget >= max_tokens:
        raise wrong("thinking.budget_tokens", f"less than max_tokens={max_tokens}", budget)
    return budget


def _template_arguments(request: CountTokensRequest, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    effort = (request.output_config or {}).get("effort")
    if effort is not None and not isinstance(effort, str):
        raise wrong("output_config.effort", "text", effort)
    mode = thinking_mode(request)
    implied = dict.fromkeys(REASONING_SWITCHES, mode == "enabled") if mode in ("enabled", "disabled") else {}
    return {**implied, **template_arguments(given, effort)}
