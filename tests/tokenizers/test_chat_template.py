"""Chat templates: what is rendered, and what is refused."""

from __future__ import annotations

import sys
import threading

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from octavo.errors import InvalidRequestError
from octavo.tokenizers.chat_template import ChatOptions, detect_content_format, render_chat
from tests.tokenizers.vocabularies import byte_level_tokenizer

CHATML = (
    "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{{ '<|im_end|>\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
USER = {"role": "user", "content": "Hi"}


def tokenizer(**templates):
    return byte_level_tokenizer(chat_templates=templates or {"default": CHATML})


def render(template=None, messages=(USER,), **options):
    return render_chat(tokenizer(), list(messages), ChatOptions(chat_template=template, **options))


def test_generation_prompt_is_the_default():
    assert render() == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


TEMPLATES = [
    CHATML,
    "{% for m in messages %}\n  {% if not loop.first %}, {% endif %}{{ m['role'] }}:{{ m.content|trim }}\n{% endfor %}",
    "{{ bos_token }}{% for m in messages if m.role != 'system' %}{{ m|tojson(indent=2) }}{{ loop.length }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content|length %}{% endfor %}{{ns.n}}",
    "{% macro show(m) %}[{{m.role ~ ':' ~ m.content[:2]}}]{% endmacro %}{{ show(messages[0]) }}{{show(m=messages[1])}}",
    "{{ messages|map(attribute='content')|join('|') }}{{ messages | selectattr('role', 'equalto', 'user') | list }}",
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content.split('i')[-1] }}{% endfor %}",
    "{% for tool in tools %}{{ tool|tojson }}{% endfor %}{{ '%s-%03d' % ('x', 7) }}{{ '{}'.format(3) }}{{ 'ab' * 3 }}",
    "{% generation %}{{ messages[0]['content'] }}{% endgeneration %}{{ documents }}{{ missing is defined }}",
    "{% set x %}{{ messages[-1].content }}!{% endset %}{{ x|upper|replace('!', '?')|indent(2) }}{{ (1, 2) + (3,) }}",
    "{{ messages[::-1][0].content }}{{ {'a': 1}.items() | list }}{{ [3, 1, 2] | sort | first }}{{ '<&>' | tojson }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_rendering_equals_transformers(template):
    messages = [{"role": "system", "content": " Be <b>'é'</b> \n"}, USER, {"role": "assistant", "content": "日本\nx"}]
    tools = None
    if "tools" in template:
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"é": [1, None, "<x>"]}}}]
    expected, _ = render_jinja_template(
        [messages], tools=tools, chat_template=template, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    assert render(template, messages, tools=tools, content_format="string") == expected[0]


def test_continued_message_is_the_end_of_the_prompt():
    messages = [USER, {"role": "assistant", "content": "Sure, the answer"}]
    text = render(messages=messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nSure, the answer"


def test_continued_message_keeps_its_trailing_space_unless_the_template_trims():
    messages = [USER, {"role": "assistant", "content": "the answer "}]
    options = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}
    assert render(**options).endswith("\nthe answer ")
    assert render("{{ messages[-1].content | trim }}<end>", **options) == "the answer"


def test_continuing_works_with_parts_and_repeated_text():
    template = "{% for m in messages %}[{% for p in m.content %}{{ p.text }}{% endfor %}]{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": parts}]
    assert render(template, messages, add_generation_prompt=False, continue_final_message=True) == "[ab][ab"


def test_continuing_a_message_that_the_template_leaves_out_is_refused():
    with pytest.raises(InvalidRequestError, match="does not write the last message"):
        render("constant", add_generation_prompt=False, continue_final_message=True)


def test_generation_prompt_and_continuation_exclude_each_other():
    """vllm#8942, #7681: both were accepted, and the prompt was wrong."""
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        render(add_generation_prompt=True, continue_final_message=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chat_template", 5),
        ("chat_template", ["{{ messages }}"]),
        ("tools", 5),
        ("tools", "search"),
        ("tools", ["search"]),
        ("tools", {"type": "function"}),
        ("add_generation_prompt", "no"),
        ("continue_final_message", 1),
        ("template_arguments", 5),
        ("template_arguments", [("a", 1)]),
    ],
)
def test_options_of_a_wrong_type_are_refused_by_name(name, value):
    with pytest.raises(InvalidRequestError, match=name.replace("template_arguments", "chat_template_kwargs")):
        render_chat(tokenizer(), [USER], ChatOptions(**{name: value}))


@pytest.mark.parametrize(
    "name", ["tokenize", "chat_template", "conversation", "messages", "tools", "add_generation_prompt", "bos_token"]
)
def test_reserved_template_arguments_are_refused(name):
    """CVE-2025-62426: chat_template_kwargs reached the renderer's own arguments."""
    with pytest.raises(InvalidRequestError, match=name):
        render(template_arguments={name: True})


def test_template_arguments_reach_the_template():
    assert render("{{ 'on' if enable_thinking else 'off' }}", template_arguments={"enable_thinking": True}) == "on"


def test_tool_arguments_can_be_iterated():
    """LocalAI#10256, vllm.cpp#526: arguments.items() failed on the JSON text."""
    template = (
        "{% for tc in messages[0].tool_calls %}{% for k, v in tc.function.arguments.items() %}{{ k }}={{ v }}"
        "{% endfor %}{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert render(template, [{"role": "assistant", "tool_calls": [call]}]) == "a=1"


def test_template_by_name_by_source_and_for_tools():
    named = tokenizer(default="D", tool_use="T{{ tools }}", rag="R")
    assert render_chat(named, [USER]) == "D"
    assert render_chat(named, [USER], ChatOptions(chat_template="rag")) == "R"
    assert render_chat(named, [USER], ChatOptions(chat_template="{{ 1 + 1 }}")) == "2"
    assert render_chat(named, [USER], ChatOptions(tools=[{"type": "function"}])) == "T[{'type': 'function'}]"


def test_model_without_a_template_says_so():
    with pytest.raises(InvalidRequestError, match=r"no default chat template.*--chat-template"):
        render_chat(byte_level_tokenizer(), [USER])
    with pytest.raises(InvalidRequestError, match="only rag"):
        render_chat(tokenizer(rag="R"), [USER])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, "string"),
        ("{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for part in m['content'] | list %}{{ part }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% set c = m.content %}{% for p in c %}{{ p }}{% endfor %}{% endfor %}", "openai"),
        ("{% for tool in tools %}{{ tool.content }}{% endfor %}", "string"),
    ],
)
def test_content_format_is_found_in_the_template(template, expected):
    assert detect_content_format(template) == expected


def test_a_template_can_refuse_a_conversation():
    with pytest.raises(InvalidRequestError, match="refuses this conversation: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    ("template", "complaint"),
    [("{% for %}", "not valid Jinja"), ("{{ 1 / 0 }}", "division by zero"), ("{{ missing.x.y }}", "missing")],
)
def test_broken_templates_are_the_requests_fault(template, complaint):
    with pytest.raises(InvalidRequestError, match=complaint) as caught:
        render(template)
    assert caught.value.parameter == "chat_template"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ self.__init__.__globals__ }}",
    ],
)
def test_the_sandbox_holds(template):
    with pytest.raises(InvalidRequestError):
        render(template)


@pytest.mark.parametrize("template", ["{{ ''|attr('__class__') }}", "{{ '{0.__class__}'.format('') }}"])
def test_private_attributes_are_undefined(template):
    assert render(template) == ""


def test_date_is_available():
    assert render("{{ strftime_now('%Y') }}").isdigit()


def test_chat_ids_have_one_bos_and_special_tokens_are_single_ids():
    """vllm#9519 and others: the template's BOS and the tokenizer's BOS both ended up in the prompt."""
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    chat = byte_level_tokenizer(add_bos=True, chat_templates={"default": template})
    assert chat.apply_chat_template([USER]) == [chat.bos_token_id, *b"Hi", 261]
    assert chat.apply_chat_template([USER], tokenize=False) == "<s>Hi<|im_end|>"


def test_renderings_in_many_threads_do_not_disturb_each_other():
    results = {}

    def run(number):
        bomb = "{% for i in range(1000) %}{{ 'x' * 100000 }}{% endfor %}"
        if number % 2:
            results[number] = render("{% for i in range(2000) %}{{ " + str(number) + " }}{% endfor %}")
        else:
            try:
                render(bomb)
            except InvalidRequestError as error:
                results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert all(results[number] == str(number) * 2000 for number in (1, 3, 5, 7))
    assert all(isinstance(results[number], InvalidRequestError) for number in (0, 2, 4, 6))
