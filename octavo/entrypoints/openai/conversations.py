"""From a conversation in a request to the prompt that runs: the one rendering behind chats and /tokenize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from octavo.entrypoints.answers import AnswerPlan, plan_answers
from octavo.entrypoints.openai.body import warn_of_unknown
from octavo.entrypoints.openai.protocol.chat import MESSAGE_FIELDS
from octavo.entrypoints.openai.state import ServerState
from octavo.entrypoints.tool_requests import NO_TOOLS, ToolWish
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.parsing.reasoning import REASONING_SWITCHES
from octavo.tokenizers.chat_template import ChatOptions, render_chat, traits_of
from octavo.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Conversation:
    """A conversation and how it is rendered, as a request gives them; None: not given."""

    messages: Sequence[Mapping[str, Any]]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    tools: ToolWish = NO_TOOLS


def render_conversation(server: ServerState, conversation: Conversation) -> str:
    """Return the prompt's text, special tokens included. Takes time: not for the event loop.

    Raises InvalidRequestError or UnsupportedError.
    """
    if conversation.chat_template is not None and not server.args.trust_request_chat_template:
        raise InvalidRequestError(
            "chat_template in a request is refused by this server, because a template is a program; start it with "
            "--trust-request-chat-template, or give it a template with --chat-template",
            "chat_template",
        )
    for index, message in enumerate(conversation.messages):
        _check_message(index, message)
    content_format = cast(Literal["auto", "string", "openai"], server.args.chat_template_content_format)
    options = ChatOptions(
        chat_template=conversation.chat_template or server.chat_template,
        content_format=content_format,
        add_generation_prompt=conversation.add_generation_prompt is not False,
        continue_final_message=bool(conversation.continue_final_message),
        tools=conversation.tools.tools or None,
        documents=conversation.documents,
        template_arguments=_all_template_arguments(server, conversation),
        describes_tools=conversation.tools.is_forced,
    )
    tokenizer = server.require_tokenizer()
    if options.tools and conversation.tools.mode == "none" and _hides_tools(server, tokenizer, options):
        options = replace(options, tools=None)
    return render_chat(tokenizer, conversation.messages, options)


def answers_to(server: ServerState, conversation: Conversation, shows_reasoning: bool = True) -> AnswerPlan:
    """Return how the answers to a conversation are read; raises InvalidRequestError."""
    arguments = _all_template_arguments(server, conversation)
    calls = (message.get("tool_calls") for message in conversation.messages)
    num_calls = sum(len(earlier) for earlier in calls if isinstance(earlier, list))
    continued = final_text(conversation) if conversation.continue_final_message else ""
    return plan_answers(server.formats, conversation.tools, arguments, shows_reasoning, num_calls, continued)


def template_arguments(arguments: Mapping[str, Any] | None, reasoning_effort: str | None) -> Mapping[str, Any]:
    """Return a request's variables for the template; an effort is one of them, and "none" switches reasoning off."""
    if reasoning_effort is None:
        return arguments or {}
    implied: dict[str, Any] = {"reasoning_effort": reasoning_effort}
    if reasoning_effort == "none":
        implied.update(dict.fromkeys(REASONING_SWITCHES, False))
    return {**implied, **(arguments or {})}


def _all_template_arguments(server: ServerState, conversation: Conversation) -> Mapping[str, Any]:
    return {**server.args.default_chat_template_kwargs, **(conversation.chat_template_kwargs or {})}


def _hides_tools(server: ServerState, tokenizer: Tokenizer, options: ChatOptions) -> bool:
    """Whether tools that may not be called stay out of the prompt: asked for, or the template has no place for them."""
    return server.args.exclude_tools_when_tool_choice_none or not traits_of(tokenizer, options).shows_tools


def answering_role(server: ServerState, conversation: Conversation) -> str:
    """Return the role of the answer: that of the last message when it is continued."""
    if conversation.continue_final_message or conversation.add_generation_prompt is False:
        role = conversation.messages[-1].get("role")
        return role if isinstance(role, str) else server.args.response_role
    return server.args.response_role


def final_text(conversation: Conversation) -> str:
    """Return the last message's text, which an echo repeats and a continued answer goes on with."""
    content = conversation.messages[-1].get("content")
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _check_message(index: int, message: Mapping[str, Any]) -> None:
    if message.get("audio"):
        raise UnsupportedError(f"messages[{index}].audio is not supported: multimodal input is not built")
    if message.get("function_call"):
        raise UnsupportedError(f"messages[{index}].function_call is not supported; use tool_calls")
    warn_of_unknown("message", message, MESSAGE_FIELDS)
