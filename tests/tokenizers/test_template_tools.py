"""Tools and their calls in chat templates: what templates of different kinds make of the same conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.tokenizers.chat_template import ChatOptions, render_chat
from octavo.tokenizers.template_traits import template_traits
from tests.tokenizers.vocabularies import byte_level_tokenizer

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TOOLS = "{% for t in tools or [] %}{{ t.function | tojson }}{% endfor %}"
CALLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}"
)
FULL = TOOLS + CALLS
# as DeepSeek's: arguments are joined to text
TEXT_ARGUMENTS = FULL.replace("{{ c.function.arguments | tojson }}", "{{ 'x' + c.function.arguments }}")
# as Mistral's
SHORT_IDS = FULL.replace(
    "[{{ c.id }}", "{% if c.id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}[{{ c.id }}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception('bad role') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)

TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "1+1?"}


def turns(arguments: Any = '{"a": 1, "é": "x"}', call_id: str = "chatcmpl-tool-1") -> list[dict[str, Any]]:
    call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": arguments}}
    return [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": [{"type": "text", "text": "2"}]},
    ]


def render(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return render_chat(byte_level_tokenizer(), messages, ChatOptions(chat_template=template, **options))


def test_arguments_reach_a_template_as_it_wants_them():
    assert '[chatcmpl-tool-1 add {"a": 1, "é": "x"}]' in render(FULL, turns())
    assert '[chatcmpl-tool-1 add {"a": 1, "é": "x"}]' in render(FULL, turns({"a": 1, "é": "x"}))
    assert '[chatcmpl-tool-1 add x{"a": 1, "é": "x"}]' in render(TEXT_ARGUMENTS, turns())
    assert '[chatcmpl-tool-1 add x{"a": 1, "é": "x"}]' in render(TEXT_ARGUMENTS, turns({"a": 1, "é": "x"}))


@pytest.mark.parametrize("arguments", ["[1]", "3", "null x", '"text"', [1]])
def test_arguments_that_are_no_object_are_refused_with_their_place(arguments: Any):
    with pytest.raises(InvalidRequestError, match=r"messages\[1\]\.tool_calls\[0\]\.function\.arguments must be"):
        render(FULL, turns(arguments))


def test_arguments_nested_too_deeply_are_refused():
    with pytest.raises(InvalidRequestError, match="nested deeper than 100"):
        render(FULL, turns('{"a": ' * 200 + "1" + "}" * 200))


def test_a_turn_with_only_calls_has_the_content_that_the_template_expects():
    """DeepSeek's templates ask whether content is none, Devstral's takes the first part."""
    none = FULL.replace(
        "{% for c in m.tool_calls or []", "{% for c in (m.tool_calls if m.content is none else []) or []"
    )
    assert "[chatcmpl-tool-1 add" in render(none, turns())
    first = FULL.replace("{{ m.content }}", "{% for p in m.content %}{% endfor %}{{ m.content[0].text }}")
    with pytest.raises(InvalidRequestError):
        render(first, [USER, {"role": "assistant", "content": []}])
    assert "[chatcmpl-tool-1 add" in render(first, turns())


def test_tools_are_there_under_the_templates_own_name():
    template = "{% for t in xml_tools or [] %}{{ t.name }};{% endfor %}" + PLAIN  # as SmolLM3's
    assert render(template, [USER], tools=[TOOL]) == "add;<user>1+1?"


def test_ids_are_shortened_only_where_they_must_be_and_stay_matched():
    text = render(SHORT_IDS, turns(call_id="chatcmpl-tool-0123456789"))
    assert "chatcmpl" not in text and "add" in text
    assert template_traits(SHORT_IDS).style.has_short_call_ids
    assert "[abcdefgh1 add" in render(SHORT_IDS, turns(call_id="abcdefgh1"))
    matched = SHORT_IDS + "{{ messages[1].tool_calls[0].id == messages[2].tool_call_id }}"
    assert render(matched, turns(call_id="chatcmpl-tool-0123456789")).endswith("True")


def test_a_result_without_a_name_gets_that_of_its_call():
    named = "{% for m in messages %}{{ m.role }}:{{ m.name }} {% endfor %}" + CALLS
    assert "tool:add " in render(named, turns())
    given = turns()
    given[2]["name"] = "other"
    assert "tool:other " in render(named, given)


def test_a_template_without_calls_gets_them_and_their_results_in_words():
    assert render(PLAIN, turns()) == ('<user>1+1?<assistant>[{"name": "add", "parameters": {"a": 1, "é": "x"}}]<tool>2')
    assert render(NO_SYSTEM, turns()).endswith('"é": "x"}}]<user>Result of add:\n2')


@pytest.mark.parametrize("as_parts", [False, True])
def test_a_developers_message_beside_the_systems_is_one_with_it(as_parts):
    """Templates that take a system message at the start only refused such conversations, or lost the developer's."""
    content = "{% for part in m.content %}{{ part.text }}|{% endfor %}" if as_parts else "{{ m.content }}"
    strict = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
        "<{{ m.role }}>" + content + "{% endfor %}"
    )
    system, developer = {"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Be brief."}
    both = "Be kind.|Be brief.|" if as_parts else "Be kind.\n\nBe brief."
    user = "<user>1+1?" + ("|" if as_parts else "")
    assert render(strict, [system, developer, USER]) == f"<system>{both}{user}"
    assert render(strict, [system, USER, developer]) == f"<system>{both}{user}"
    assert render("{# developer #}" + PLAIN, [system, developer]) == "<system>Be kind.<developer>Be brief."


def test_the_developers_messages_are_the_systems_unless_a_template_knows_better():
    messages = [{"role": "developer", "content": "Be brief."}, USER]
    assert render(PLAIN, messages) == "<system>Be brief.<user>1+1?"
    assert render("{# developer #}" + PLAIN, messages) == "<developer>Be brief.<user>1+1?"
    dropping = "{% for m in messages if m.role != 'developer' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert render(dropping, messages) == "<system>Be brief.<user>1+1?"


def test_reasoning_of_earlier_turns_is_given_to_the_template():
    template = (
        "{% for m in messages %}{{ m.reasoning_content or '' }}|{{ m.thinking or '' }}|{{ m.content }};{% endfor %}"
    )
    for name in ("reasoning", "reasoning_content"):
        messages = [USER, {"role": "assistant", name: "hm", "content": "2"}, USER]
        assert render(template, messages) == "||1+1?;hm|hm|2;||1+1?;"


def test_roles_whose_content_is_text_get_text_from_a_template_that_loops_over_others():
    assert template_traits(PARTS).style.text_roles >= {"system", "assistant", "tool"}
    assert render(PARTS, turns()).endswith("<tool>2")
    assert render(PARTS, [{"role": "system", "content": "Hi"}, USER]) == "<system>Hi<user>1+1?"


def test_tools_that_a_template_would_drop_are_refused():
    assert template_traits(FULL).shows_tools and not template_traits(PLAIN).shows_tools
    with pytest.raises(InvalidRequestError, match="does not describe tools") as caught:
        render(PLAIN, [USER], tools=[TOOL])
    assert caught.value.parameter == "tools"


def test_tools_can_be_described_in_words():
    text = render(PLAIN, [USER], tools=[TOOL], describes_tools=True)
    system, _, user = text.partition("<user>")
    assert system.startswith("<system>") and json.dumps(TOOL["function"]) in system and user == "1+1?"
    with_system = render(PLAIN, [{"role": "system", "content": "Be kind."}, USER], tools=[TOOL], describes_tools=True)
    assert with_system.startswith("<system>Be kind.\n\nYou can call") and with_system.count("<system>") == 1
    without = render(NO_SYSTEM, [USER], tools=[TOOL], describes_tools=True)
    assert without.startswith("<user>You can call") and without.endswith("\n\n1+1?")
    assert render(FULL, [USER], tools=[TOOL], describes_tools=True) == render(FULL, [USER], tools=[TOOL])


def test_a_template_that_never_ends_costs_its_trials_one_budget():
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    assert not template_traits(endless).shows_tools
