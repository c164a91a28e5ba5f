"""Formats by name, by chat template, and from the operator's plug-ins."""

# ruff: noqa: RUF001  (DeepSeek's markers are written with full-width bars)
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.errors import ConfigError, UnsupportedError
from octavo.parsing.reasoning import REASONING_FORMATS
from octavo.parsing.registry import (
    load_plugin,
    resolve_reasoning_parser,
    resolve_tool_parser,
)
from octavo.parsing.tool_formats import TOOL_FORMATS
from tests.parsing.helpers import Result, maker, streamed

# What tells the templates of well-known models apart: (part of the template, tool parser, reasoning parser)
TEMPLATES = [
    ("<tool_call>\n{'name': <function-name>, 'arguments': <args-json-object>}\n</tool_call>", "hermes", None),
    ("</tool_call> ... content.split('</think>') ... '<think>\\n\\n</think>\\n\\n'", None, "qwen3"),
    ("<tool_call>\n<function=example_function_name>\n<parameter=example>", "qwen3_coder", None),
    ("{{- '<|python_tag|>' + tool_call }} {\"name\": function name, \"parameters\": dictionary of argument name and",
     "llama3_json", None),
    ("<|header_start|> ... <|python_start|> ... <|python_end|>", "llama4_pythonic", None),
    ("[AVAILABLE_TOOLS] ... [TOOL_CALLS] ... [/INST]", "mistral", None),
    ("[TOOL_CALLS] ... [THINK] ... [/THINK]", "mistral", "mistral"),
    ("<|tool_call|> ... <|start_of_role|> Here is my thought process: ", "granite", "granite"),
    ("<｜tool▁calls▁begin｜>function<｜tool▁sep｜> ```json </think> ", "deepseek_v3", None),
    ("<｜tool▁calls▁begin｜>name<｜tool▁sep｜> <think> </think>", "deepseek_v31", "deepseek_v3"),
    ("<|tool_calls_section_begin|> <think>", "kimi_k2", "kimi_k2"),
    ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key> <think></think>", "glm45", "glm45"),
    ("<minimax:tool_call>\n<invoke name= ... <think>", "minimax_m2", "minimax_m2"),
    ("<seed:tool_call>\n<function= ... <seed:think>", "seed_oss", "seed_oss"),
    ("<|start|>assistant<|channel|>analysis<|message|> to=functions.", "openai", "openai_gptoss"),
    ("<|system|> + '<|tool|>' + message['tools'] + '<|/tool|>'", "phi4_mini_json", None),
    ("<|tool_list_start|>[", "lfm2", None),
    ("<tool_call>\n{ <think>\n ... <response>\n", "hermes", "ernie45"),
    ("<start_function_call>call:", "functiongemma", None),
    ("<tool_calls>\n<tool_call>{name}<tool_sep> <arg_key> <think>", "hy_v3", "hy_v3"),
    ("<tool_calls><tool_call>{name}<arg_key> <think>", "hy_v4", "hy_v4"),
    ("]<]minimax[>[<tool_call> <invoke name= <mm:think>", "minimax_m3", "minimax_m3"),
    ("'<|open|>' ~ tag ~ '<|sep|>' ... '<|close|>'", "kimi_k3", "kimi_k3"),
    ("<ifm|tool_calls> <ifm|think_fast>", "k2_horizon", "k2_horizon"),
    ("<|plamo:begin_tool_requests:plamo|> ... <|plamo:begin_think:plamo|>", "plamo3", "plamo3"),
    ("<|plamo:op|>user ... <|plamo:op|>assistant", None, None),
    ('<function name="function-name"><param name="param-name">value</param></function> <think>', "minicpm5", "qwen3"),
    ("<｜DSML｜ calls>", "deepseek_v41", None),
    ("<|START_THINKING|> <|START_TEXT|> <|START_ACTION|>", "cohere_command4", "cohere_command4"),
    ("<|START_THINKING|> <|START_RESPONSE|> <|START_ACTION|>", "cohere_command3", "cohere_command3"),
    ("{{ bos_token }}{% for message in messages %}<start_of_turn>", None, None),
    ("", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("template", "tool", "reasoning"), TEMPLATES)
def test_auto_chooses_by_the_chat_template(template: str, tool: str | None, reasoning: str | None) -> None:
    tool_format = resolve_tool_parser("auto", template)
    reasoning_format = resolve_reasoning_parser("auto", template)
    if "</tool_call> ..." not in template:
        assert (tool_format.name if tool_format else None) == tool
    assert (reasoning_format.name if reasoning_format else None) == reasoning


def test_every_name_resolves_to_its_own_format() -> None:
    for name in TOOL_FORMATS:
        found = resolve_tool_parser(name)
        assert found is not None
        assert found.name == name
    for name in REASONING_FORMATS:
        assert resolve_reasoning_parser(name) is REASONING_FORMATS[name]
    assert resolve_tool_parser(None) is None
    assert resolve_tool_parser("none") is None
    assert resolve_reasoning_parser("") is None


def test_the_page_about_parsing_names_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "parsing.md").read_text(encoding="utf-8")
    calls, reasoning = page.split("## Tool parsers")[1].split("## Reasoning parsers")
    reasoning = reasoning.split("## Forced")[0]
    assert not [name for name in TOOL_FORMATS if f"`{name}`" not in calls]
    assert not [name for name in REASONING_FORMATS if f"`{name}`" not in reasoning]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"--tool-call-parser 'hermse'.*hermes"):
        resolve_tool_parser("hermse")
    with pytest.raises(ConfigError, match=r"--reasoning-parser 'qwen'.*qwen3"):
        resolve_reasoning_parser("qwen")
    with pytest.raises(UnsupportedError, match="inkling: this format is not built"):
        resolve_tool_parser("inkling")
    with pytest.raises(UnsupportedError, match="minicpmv: this format is not built"):
        resolve_reasoning_parser("minicpmv")


@pytest.fixture
def _formats_as_before() -> Iterator[None]:
    before = dict(TOOL_FORMATS), dict(REASONING_FORMATS)
    yield
    for table, saved in zip((TOOL_FORMATS, REASONING_FORMATS), before, strict=True):
        table.clear()
        table.update(saved)  # type: ignore[arg-type]


PLUGIN = """
from dataclasses import dataclass
from octavo.parsing.formats import ToolFormat
from octavo.parsing.json_calls import JsonCalls
from octavo.parsing.reasoning import ReasoningFormat
from octavo.parsing.registry import register_reasoning_format, register_tool_format

register_tool_format(ToolFormat("ours", JsonCalls(names=("tool",)), opening=("@call",), closing=("@end",)))
register_reasoning_format(ReasoningFormat("ours", opening=("@think",), closing=("@so",)))
"""


@pytest.mark.usefixtures("_formats_as_before")
def test_a_plug_in_adds_formats(tmp_path: Path) -> None:
    path = tmp_path / "ours.py"
    path.write_text(PLUGIN)
    load_plugin(path)
    result = streamed(maker("ours", "ours"), '@think Hm @so @call {"tool": "f", "arguments": {"a": 1}} @end')
    assert result == Result(" Hm ", None, (("f", '{"a": 1}', True),))
    load_plugin(path)  # both options may name one file


IDLE_PLUGIN = """
from octavo.parsing.formats import ToolFormat
from octavo.parsing.registry import register_tool_format

class Idle:
    literals = ()
    starts = ("{",)

    def read(self, context):
        yield from context.reader.skip_space()

register_tool_format(ToolFormat("idle", Idle(), opening=("@call",), bare=("{",)))
"""


@pytest.mark.usefixtures("_formats_as_before")
def test_a_plug_in_that_reads_nothing_does_not_hang_the_server(tmp_path: Path) -> None:
    path = tmp_path / "idle.py"
    path.write_text(IDLE_PLUGIN)
    load_plugin(path)
    for text in ("@call{}{}", "{}{}", "{"):
        assert streamed(maker("idle"), text) == Result(None, text, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [("x = 1", "registers nothing"), ("1 / 0", "ZeroDivisionError"), ("def (", "SyntaxError"), (None, "no such file")],
)
def test_a_plug_in_that_does_not_work_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_plugin(path)
