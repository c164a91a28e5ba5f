"""What is no call is content as it was generated; a call that breaks off is incomplete; nothing is lost."""

# ruff: noqa: RUF001  (DeepSeek's markers are written with full-width bars)
from __future__ import annotations

import random

import pytest

from octavo.parsing.registry import TOOL_FORMATS
from tests.parsing.encoders import ENCODERS
from tests.parsing.helpers import Result, cut, maker, streamed, whole

NO_CALLS = [
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_call></tool_call>"),
    ("hermes", "<tool_call>sorry</tool_call> again"),
    ("hermes", "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>"),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f" "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f\\q", "arguments": {}}</tool_call>'),
    ("hermes", "2 < 3 <tool_cal <tool_call"),
    ("hermes", "</tool_call>"),
    ("hermes", "  \n "),
    ("llama3_json", '{"name": "nobody", "parameters": {}}'),
    ("llama3_json", '{"name": "f"}'),
    ("llama3_json", '{"name": "f", "age": 3}'),
    ("llama3_json", '{"name": "f", "age": 3, "parameters": {}}'),
    ("llama3_json", 'It is {"a": [1, {"b": 2}]}; {}'),
    ("llama3_json", "{{{{"),
    ("json", '[1, 2, {"name": "f", "size": 3}]'),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS] []"),
    ("mistral", "[TOOL_CALLS] [1]"),
    ("mistral", "[TOOL_CALLS]some words {"),
    ("pythonic", "[1, 2]"),
    ("pythonic", "[f]"),
    ("pythonic", "[f(1)]"),
    ("pythonic", "[f('a', b=1)]"),
    ("pythonic", "[nobody(a=1)]"),
    ("pythonic", "[f("),
    ("qwen3_coder", "<tool_call>\n<function=>\n</function>\n</tool_call>"),
    ("qwen3_coder", "<tool_call>\n<function=f"),
    ("qwen3_coder", "<function=nobody>\n</function>"),
    ("glm45", "<tool_call>"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"),
    ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>oh<｜tool▁call▁end｜>"),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
    ("functiongemma", "<start_function_call>call:f<end_function_call>"),
    ("phi4_mini_json", "functools is a module, functools[0] is not"),
]


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_is_content_as_it_was_generated(name: str, text: str) -> None:
    expected = Result(None, text, ())
    assert whole(maker(name), text) == expected
    assert streamed(maker(name), text) == expected


BROKEN = [
    # it begins for certain with its arguments, and ends where it goes wrong; what follows is content
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1]}</tool_call>', '{"a": 1', "]}</tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x', '{"a": "x', None),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": [}', '{"a": [', "}"),
    ("pythonic", "[f(a=b)]", '{"a": ', "b)]"),
    ("pythonic", "[f(a='x', 5)] bye", '{"a": "x"', ", 5)] bye"),
    ("pythonic", "[f(a={1: 2}, b={3})]", '{"a": {"1": 2}, "b": {"3"', "})]"),
    ("pythonic", "[f(a='x\\", '{"a": "x', "\\"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\noops</tool_call>", '{"a": "x"',
     "\noops</tool_call>"),
    ("qwen3_coder", "<tool_call>\n<function=run>\n<parameter=timeout>\n12", '{"timeout": 12', None),
    ("qwen3_coder", "<tool_call>\n<function=run>\n<parameter=command>\nls", '{"command": "ls', None),
    ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\noops", "", "<arg_key>a</arg_key>\noops"),
    ("functiongemma", "<start_function_call>call:f{a:1;b]<end_function_call>", '{"a": "1;b"', "]<end_function_call>"),
    ("functiongemma", "<start_function_call>call:f{:1}", "{", ":1}"),
    ("openai", "<|channel|>commentary to=functions.f<|message|>not json<|call|>", "not json", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "arguments", "content"), BROKEN)
def test_a_call_that_breaks_is_incomplete_and_what_follows_is_content(
    name: str, text: str, arguments: str, content: str | None
) -> None:
    result = whole(maker(name), text)
    assert [call[1:] for call in result.calls] == [(arguments, False)]
    assert result.content == content
    assert streamed(maker(name), text) == result


def test_what_looks_like_a_call_behind_a_closed_one_is_content() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n{"name": "g", "arguments": {}}'
    expected = Result(None, '\n{"name": "g", "arguments": {}}', (("f", "{}", True),))
    assert whole(maker("hermes"), text) == expected
    assert streamed(maker("hermes"), text) == expected


def test_a_closing_marker_that_is_cut_off_is_not_content() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}\n</tool_call>'
    for length in range(text.index("</tool_call>"), len(text)):
        assert whole(maker("hermes"), text[:length]) == Result(None, None, (("f", "{}", True),))
        assert streamed(maker("hermes"), text[:length]) == Result(None, None, (("f", "{}", True),))


def test_a_call_after_a_broken_one_is_read() -> None:
    text = '<tool_call>{"name": oh}</tool_call>\n<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    result = Result(None, '<tool_call>{"name": oh}</tool_call>\n', (("g", "{}", True),))
    assert whole(maker("hermes"), text) == result
    assert streamed(maker("hermes"), text) == result


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "{}"),
        (', "arguments": null', "{}"),
        (', "arguments": {}', "{}"),
        (', "arguments": ""', "{}"),
        (', "arguments": "{\\"a\\": 1}"', '{"a": 1}'),
        (', "arguments": "text"', '"text"'),
        (', "arguments": 1.50', "1.50"),
        (', "arguments": [1, {}]', "[1, {}]"),
        (', "parameters": {"a": 1}', '{"a": 1}'),
        (', "id": "x", "arguments": {"a": 1}, "more": [{"b": "}"}]', '{"a": 1}'),
        (', "arguments": {"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
        (', "arguments": {"a": 1}, "arguments": {"b": 2}', '{"a": 1}'),
    ],
)
def test_arguments_of_every_kind(arguments: str, expected: str) -> None:
    for text in (
        f'<tool_call>{{"name": "f"{arguments}}}</tool_call>',
        f'<tool_call>{{{arguments.removeprefix(", ")}{", " if arguments else ""}"name": "f"}}</tool_call>',
    ):
        assert whole(maker("hermes"), text) == Result(None, None, (("f", expected, True),))
        assert streamed(maker("hermes"), text) == whole(maker("hermes"), text)


def test_white_space_that_only_touches_calls_is_layout_and_other_white_space_is_content() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    one = (("f", "{}", True),)
    cases = {
        f"\n\n{call}\n": (None, 1),
        f"{call}\n{call}\n\n{call}": (None, 3),
        f"Look: \n{call}\n \n": ("Look: \n", 1),
        f"{call}\n\nDone.\n": ("\n\nDone.\n", 1),
        f"a\n{call} b {call} ": ("a\n b ", 2),
    }
    for text, (content, num_calls) in cases.items():
        assert whole(maker("hermes"), text) == Result(None, content, one * num_calls), text
        assert streamed(maker("hermes"), text) == whole(maker("hermes"), text)


def test_without_a_format_everything_is_content() -> None:
    text = ' <tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
    assert whole(maker(None), text) == Result(None, text, ())
    assert streamed(maker(None), text) == Result(None, text, ())


def fragments(name: str) -> list[str]:
    """What a format is made of, and what it could trip over."""
    tool_format = TOOL_FORMATS[name]
    own = [*tool_format.markers, *tool_format.bare, *tool_format.separators]
    encoded = [encode([("f", {"a": "x{", "b": [1]}), ("now", {})]) for encode in ENCODERS[name]]
    parts = [piece for text in encoded for piece in (text, text[: len(text) // 2], text[len(text) // 3 :])]
    common = ["{", "}", "[", "]", '"', "\\", "'", ":", ",", "(", ")", "=", "<", ">", "\n", " ", "f", "name", '"name"']
    common += ['{"name": "f", "arguments": {', '"arguments"', "f(", "a=", "é🙂", "</", "5", "null", "<|", "text"]
    return [fragment for fragment in (*own, *own, *parts, *common) if fragment]


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_any_mixture_gives_the_same_however_it_is_cut_and_content_is_never_made_up(name: str) -> None:
    generator = random.Random(name)
    pool = [*fragments(name), "<think>", "</think>", "[THINK]"]
    for turn in range(150):
        reasoning = (None, "qwen3", "hunyuan_a13b")[turn % 3]
        make = maker(name, reasoning)
        text = "".join(generator.choice(pool) for _ in range(generator.randrange(1, 25)))
        result = whole(make, text)
        assert streamed(make, cut(text, generator)) == result, text
        assert streamed(make, text) == result, text
        assert is_part(result.content or "", text), text
        if not result.calls and reasoning is None and name != "openai":
            assert (result.content or "") == text


def is_part(part: str, text: str) -> bool:
    """Whether a text is another one with some characters left out."""
    characters = iter(text)
    return all(character in characters for character in part)
