"""Chat templates: a conversation -> the prompt's text. The one place where `LLM.chat` and the server do this.

The text holds the model's special tokens, beginning-of-sequence included, so it is tokenised without adding any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from octavo.errors import InvalidRequestError
from octavo.tokenizers.chat_messages import ContentFormat, MessageStyle, normalize_messages, plain_value
from octavo.tokenizers.chat_messages import Message as Message  # part of this module's interface
from octavo.tokenizers.generic_tools import with_tools_described
from octavo.tokenizers.template_source import compile_source, render_source
from octavo.tokenizers.template_traits import TemplateTraits, template_traits, tool_variables
from octavo.types.sampling_checks import as_bool, wrong

# Names that the renderer itself passes, or that mean something to Transformers' apply_chat_template: a request must
# not reach them through chat_template_kwargs.
RESERVED_ARGUMENTS = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "chat_template", "tokenize", "tokenizer_kwargs"),
        *("add_generation_prompt", "continue_final_message", "return_dict", "return_tensors", "padding"),
        *("truncation", "max_length", "return_assistant_tokens_mask", "raise_exception", "strftime_now"),
        *("bos_token", "eos_token", "unk_token", "pad_token", "self"),
    )
)

# Ends the final message while it is rendered, to find where its text ends. The space tells whether the template trims.
_CUT_MARK = "\ue000octavo-cut-here\ue000 "


class ChatTokenizer(Protocol):
    """What rendering needs of a tokenizer; `Tokenizer` is one."""

    chat_templates: Mapping[str, str]
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None


@dataclass(frozen=True)
class ChatOptions:
    """How to render a conversation; names and defaults are vLLM's.

    chat_template: Jinja source, or the name of one of the tokenizer's templates; None for the tokenizer's own
    content_format: whether the template takes content as a string or a list of parts; "auto" looks into the template
    template_arguments: further variables for the template (chat_template_kwargs)
    describes_tools: a template that has no place for tools gets them as words of the system prompt; else they are
        refused
    """

    chat_template: str | None = None
    content_format: Literal["auto", "string", "openai"] = "auto"
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    describes_tools: bool = False


def render_chat(tokenizer: ChatTokenizer, messages: Sequence[Message], options: ChatOptions | None = None) -> str:
    """Render a conversation to the prompt's text; tokenise it with add_special_tokens=False.

    Raises InvalidRequestError for a wrong conversation or option, a template that fails, and one that would take too
    much time or memory.
    """
    options = options or ChatOptions()
    _check_options(options)
    source = choose_template(tokenizer, options)
    content_format = options.content_format
    if content_format == "auto":
        content_format = detect_content_format(source)
    tools = options.tools
    conversation = normalize_messages(messages, content_format, _style(source, content_format, messages))
    if tools and not template_traits(source).shows_tools:
        conversation, tools = _in_system_prompt(source, conversation, options), None
    if options.continue_final_message:
        _mark_final_text(conversation[-1])
    special = {role: getattr(tokenizer, role) for role in ("bos_token", "eos_token", "unk_token", "pad_token")}
    variables = {
        **{role: token for role, token in special.items() if token is not None},
        **{name: plain_value(value) for name, value in options.template_arguments.items()},
        "messages": conversation,
        **tool_variables(source, plain_value(list(tools)) if tools else None),
        "documents": plain_value(list(options.documents)) if options.documents else None,
        "add_generation_prompt": options.add_generation_prompt and not options.continue_final_message,
    }
    text = render_source(source, variables)
    return _cut_at_mark(text) if options.continue_final_message else text


def detect_content_format(source: str) -> ContentFormat:
    """Return "openai" if a template loops over a message's content, else "string"."""
    return compile_source(source).content_format


def traits_of(tokenizer: ChatTokenizer, options: ChatOptions) -> TemplateTraits:
    """Return what the template that options choose makes of tools; raises InvalidRequestError if there is none."""
    return template_traits(choose_template(tokenizer, options))


def _check_options(options: ChatOptions) -> None:
    if options.chat_template is not None and not isinstance(options.chat_template, str):
        raise wrong("chat_template", "the text or the name of a template", options.chat_template)
    as_bool("add_generation_prompt", options.add_generation_prompt)
    as_bool("continue_final_message", options.continue_final_message)
    for name, objects in (("tools", options.tools), ("documents", options.documents)):
        is_list = isinstance(objects, (list, tuple)) and all(isinstance(item, Mapping) for item in objects)
        if objects is not None and not is_list:
            raise wrong(name, "a list of objects", objects)
    if not isinstance(options.template_arguments, Mapping):
        raise wrong("chat_template_kwargs", "a mapping", options.template_arguments)
    if options.add_generation_prompt and options.continue_final_message:
        raise InvalidRequestError(
            "add_generation_prompt and continue_final_message exclude each other: a new turn cannot begin while the "
            "last one is continued; set one of them to False",
            "continue_final_message",
        )
    reserved = sorted(RESERVED_ARGUMENTS & options.template_arguments.keys())
    if reserved:
        raise InvalidRequestError(
            f"chat_template_kwargs must not contain {', '.join(reserved)}: these are set by the server or have a "
            "field of their own",
            "chat_template_kwargs",
        )


def choose_template(tokenizer: ChatTokenizer, options: ChatOptions) -> str:
    """Return the source of the template that options ask for; raises InvalidRequestError if there is none."""
    templates = tokenizer.chat_templates
    if options.chat_template is not None:
        return templates.get(options.chat_template, options.chat_template)
    if options.tools and "tool_use" in templates:
        return templates["tool_use"]
    if "default" in templates:
        return templates["default"]
    named = f" (it has only {', '.join(sorted(templates))}: name one)" if templates else ""
    raise InvalidRequestError(
        f"the model's tokenizer has no default chat template{named}; give one with chat_template (--chat-template "
        "where the server starts), or send a prompt or input that you wrote out yourself",
        "chat_template",
    )


def _in_system_prompt(source: str, messages: list[dict[str, Any]], options: ChatOptions) -> list[dict[str, Any]]:
    """Return the conversation with tools in words, for a template that would drop them."""
    if not options.describes_tools:
        raise InvalidRequestError(
            "the model's chat template does not describe tools, so the model would never hear of them; use a model or "
            "a chat_template that knows tools, describe them in a message of your own, or have the server force a "
            'call (tool_choice "required", or a function\'s name)',
            "tools",
        )
    return with_tools_described(messages, options.tools or (), template_traits(source).has_system_role)


def _style(source: str, content_format: ContentFormat, messages: Sequence[Message]) -> MessageStyle | None:
    """Return how the template wants its messages; None for a conversation to which that makes no difference."""
    is_plain = content_format == "string" and not any(_needs_style(message) for message in messages)
    return None if is_plain else template_traits(source).style


def _needs_style(message: object) -> bool:
    """Whether a message has calls or a role that templates see differently. Other than mappings may have anything."""
    if not isinstance(message, Mapping):
        return True
    return bool(message.get("tool_calls")) or message.get("role") in ("tool", "developer")


def _mark_final_text(message: dict[str, Any]) -> None:
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _CUT_MARK
    elif content:
        content[-1]["text"] += _CUT_MARK
    else:
        raise InvalidRequestError("continue_final_message needs text in the last message, got none", "messages")


def _cut_at_mark(text: str) -> str:
    """Return the text up to the end of the final message; without its trailing spaces if the template trims those."""
    found = text.rfind(_CUT_MARK.rstrip())
    if found < 0:
        raise InvalidRequestError(
            "continue_final_message: the chat template does not write the last message's text, so there is nothing to "
            "continue",
            "continue_final_message",
        )
    return text[:found] if text.startswith(_CUT_MARK, found) else text[:found].rstrip()
