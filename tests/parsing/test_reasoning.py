"""Reasoning apart from content, alone and before calls."""

# ruff: noqa: RUF001  (DeepSeek's markers are written with full-width bars)
from __future__ import annotations

import random

import pytest
import tokenizers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from octavo.engine.reasoning import reasoning_markers
from octavo.parsing.parser import create_parser, shown_tokens
from octavo.parsing.reasoning import REASONING_FORMATS, starts_in_reasoning
from octavo.parsing.reasoning_tokens import ReasoningTokenCounter, ReasoningTokens, reasoning_tokens
from octavo.parsing.registry import TOOL_FORMATS, resolve_reasoning_parser
from octavo.tokenizers.parts import TokenizerParts
from octavo.tokenizers.tokenizer import Tokenizer
from tests.parsing.helpers import Result, cut, maker, streamed, whole

# reasoning parser, begins inside, output, reasoning, content
OUTPUTS = [
    # the opening marker comes from the model, from the prompt, or from both
    ("qwen3", False, "<think>\nHm, 3 < 4.\n</think>\n\nYes.", "\nHm, 3 < 4.\n", "\n\nYes."),
    ("qwen3", True, "Hm.\n</think>\n\nYes.", "Hm.\n", "\n\nYes."),
    ("qwen3", True, "<think>Hm.</think>Yes.", "Hm.", "Yes."),
    ("qwen3", True, "\n <think>Hm.</think>Yes.", "Hm.", "Yes."),
    # not opened: content, also where it talks about the marker
    ("qwen3", False, "Yes, <think> is a tag, </think> too.", None, "Yes, <think> is a tag, </think> too."),
    ("qwen3", False, " Yes.", None, " Yes."),
    ("qwen3", False, "<thin", None, "<thin"),
    # not closed: all of it is reasoning
    ("qwen3", False, "<think>Hm </thin", "Hm </thin", None),
    ("qwen3", True, "Hm", "Hm", None),
    ("qwen3", True, "", None, None),
    # nothing thought
    ("qwen3", False, "<think>\n\n</think>\n\nYes.", "\n\n", "\n\nYes."),
    ("qwen3", False, "<think></think>Yes.", None, "Yes."),
    # a second marker is text
    ("qwen3", False, "<think>a<think>b</think>c</think>d<think>e", "a<think>b", "c</think>d<think>e"),
    ("deepseek_r1", True, "Hm.\n</think>\n\nYes.", "Hm.\n", "\n\nYes."),
    ("deepseek_r1", True, "Hm 日本語 🙂", "Hm 日本語 🙂", None),
    ("deepseek_v3", False, "Yes.", None, "Yes."),
    ("glm45", False, "<think>Hm</think>\nYes.", "Hm", "\nYes."),
    ("minimax_m2", True, "Hm\n</think>\n\nYes.", "Hm\n", "\n\nYes."),
    ("olmo3", True, "Hm</think>Yes.", "Hm", "Yes."),
    ("kimi_k2", True, "Hm</think>Yes.", "Hm", "Yes."),
    ("seed_oss", False, "<seed:think>Hm</seed:think>Yes.", "Hm", "Yes."),
    ("mistral", False, "[THINK]Hm [1][/THINK]Yes.", "Hm [1]", "Yes."),
    ("minimax_m3", False, "<mm:think>Hm</mm:think>Yes.", "Hm", "Yes."),
    ("gemma4", False, "<|channel>thought\nHm<channel|>Yes.", "Hm", "Yes."),
    ("step3", True, "Hm</think>Yes.", "Hm", "Yes."),
    # sentences for markers
    ("granite", False, "Here is my thought process: Hm. Here is my response: Yes.", " Hm. ", " Yes."),
    ("granite", False, "Here's my thought process:\nHm.\n\nHere's my response:\nYes.", "\nHm.\n\n", "\nYes."),
    ("granite", False, "Here is my answer.", None, "Here is my answer."),
    # content in markers too
    ("hunyuan_a13b", False, "<think>\nHm\n</think>\n<answer>\nYes.\n</answer>", "Hm", "Yes."),
    ("ernie45", True, "Hm\n</think>\n\n<response>\nYes.\n</response>\n", "Hm\n", "\n\nYes."),
    (
        "cohere_command3",
        False,
        "<|START_THINKING|>Hm<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
        "Hm",
        "Yes.",
    ),
    (
        "cohere_command4",
        False,
        "<|START_THINKING|>Hm<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>",
        "Hm",
        "Yes.",
    ),
    (
        "kimi_k3",
        True,
        "Hm<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|><|close|>message<|sep|>",
        "Hm",
        "Yes.",
    ),
    ("plamo3", True, "Hm<|plamo:end_think:plamo|>Yes.", "Hm", "Yes."),
    ("plamo3", False, "<|plamo:begin_think:plamo|>Hm<|plamo:end_think:plamo|>Yes.", "Hm", "Yes."),
    # a marker for each effort
    ("k2_horizon", True, "Hm</ifm|think>Yes.", "Hm", "Yes."),
    ("k2_horizon", False, "<ifm|think_fast>Hm</ifm|think_fast>Yes.", "Hm", "Yes."),
    # layout before the content, but not before other models'
    ("granite_thinking_parser", True, "Hm\n</think>\n\nYes.\n", "Hm\n", "Yes.\n"),
    # left in the content, with the marker that the prompt has
    ("minimax_m2_append_think", True, " Hm</think>Yes.", None, "<think> Hm</think>Yes."),
    ("minimax_m2_append_think", True, "\n<think>Hm</think>Yes.", None, "\n<think>Hm</think>Yes."),
    ("minimax_m2_append_think", False, "Yes.", None, "Yes."),
    # channels
    (
        "openai_gptoss",
        False,
        "<|channel|>analysis<|message|>Hm <b><|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        "Hm <b>",
        "Yes.",
    ),
    (
        "openai_gptoss",
        False,
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant<|channel|>final<|message|>d",
        "ab",
        "cd",
    ),
    ("openai_gptoss", False, "<|channel|>analysis to=browser.search code<|message|>{}<|call|>", "{}", None),
    ("openai_gptoss", False, "Yes.", None, "Yes."),
    ("openai_gptoss", False, "<|channel|>final", None, "<|channel|>final"),
]


@pytest.mark.parametrize(("name", "is_reasoning", "text", "reasoning", "content"), OUTPUTS)
def test_reasoning_and_content_come_apart_however_they_are_cut(
    name: str, is_reasoning: bool, text: str, reasoning: str | None, content: str | None
) -> None:
    expected = Result(reasoning, content, ())
    make = maker(None, name, is_reasoning=is_reasoning)
    assert whole(make, text) == expected
    assert streamed(make, text) == expected
    generator = random.Random(text)
    for _ in range(60):
        assert streamed(make, cut(text, generator)) == expected


def test_every_reasoning_format_is_tried() -> None:
    like_others = {"nemotron_v3", "deepseek_v4", "deepseek_v41", "ling3", "holo2", "glm47", "mimo", "step3p5"}
    like_others |= {"poolside_v1", "hy_v3", "hy_v4"}
    assert {output[0] for output in OUTPUTS} | like_others == set(REASONING_FORMATS)


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'
)
HARMONY = (
    "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary<|message|>Look:<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
)
WITH_CALLS = [
    ("hermes", "qwen3", False, f"<think>\nHm\n</think>\n\n{CALL}", "\nHm\n", None),
    ("hermes", "deepseek_r1", True, f"Hm</think>Look:\n{CALL}", "Hm", "Look:\n"),
    # a call inside the reasoning is reasoning ...
    ("hermes", "deepseek_r1", True, f"Shall I {CALL}?</think>{CALL}", f"Shall I {CALL}?", None),
    # ... but for models that do not always close it before they call
    ("hermes", "qwen3", True, f"Hm\n{CALL}", "Hm\n", None),
    ("kimi_k2", "kimi_k2", True, f"Hm {KIMI}", "Hm ", None),
    ("kimi_k2", "kimi_k2", True, f"Hm</think>{KIMI}", "Hm", None),
    ("mistral", "mistral", False, '[THINK]Hm[/THINK][TOOL_CALLS]f[ARGS]{"a": 1}', "Hm", None),
    ("openai", "openai_gptoss", False, HARMONY, "Hm", "Look:"),
    ("openai", None, False, HARMONY, "Hm", "Look:"),
    # an output that begins with the recipient: the prompt ends with <|start|>assistant
    ("openai", None, False, ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>', None, None),
    (
        "cohere_command3",
        "cohere_command3",
        False,
        '<|START_THINKING|>Hm<|END_THINKING|><|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": '
        '{"a": 1}}]<|END_ACTION|>',
        "Hm",
        None,
    ),
]


@pytest.mark.parametrize(("tool", "name", "is_reasoning", "text", "reasoning", "content"), WITH_CALLS)
def test_reasoning_comes_before_calls(
    tool: str, name: str | None, is_reasoning: bool, text: str, reasoning: str | None, content: str | None
) -> None:
    expected = Result(reasoning, content, (("f", '{"a": 1}', True),))
    make = maker(tool, name, is_reasoning=is_reasoning)
    assert whole(make, text) == expected
    assert streamed(make, text) == expected


def test_calls_of_a_request_without_tools_are_content() -> None:
    assert whole(maker(None, "qwen3"), f"<think>Hm</think>{CALL}") == Result("Hm", CALL, ())
    assert whole(maker(None, "openai_gptoss"), HARMONY) == Result("Hm", 'Look:{"a": 1}', ())


@pytest.mark.parametrize(
    ("name", "prompt", "arguments", "expected"),
    [
        ("qwen3", "<|im_start|>assistant\n<think>\n", {}, True),
        ("qwen3", "<|im_start|>assistant\n", {}, False),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", {"enable_thinking": False}, False),
        # a template without the switch opens it all the same
        ("qwen3", "<|im_start|>assistant\n<think>\n", {"enable_thinking": False}, True),
        ("qwen3", "user: what does <think> mean?\nassistant:", {}, False),
        ("deepseek_r1", "<｜Assistant｜>", {}, True),
        ("deepseek_r1", "<｜Assistant｜></think>", {}, False),
        ("deepseek_r1", "<｜Assistant｜>", {"thinking": False}, False),
        ("deepseek_v3", "<｜Assistant｜></think>", {}, False),
        ("deepseek_v3", "<｜Assistant｜><think>", {}, True),
        ("mistral", "[/INST]", {}, False),
        ("openai_gptoss", "<|start|>assistant", {}, False),
    ],
)
def test_the_prompt_tells_whether_an_output_begins_inside_the_reasoning(
    name: str, prompt: str, arguments: dict[str, object], expected: bool
) -> None:
    assert starts_in_reasoning(REASONING_FORMATS[name], prompt, arguments) is expected


@pytest.mark.parametrize(
    ("continued", "expected"),
    [("<think>Hm, but", True), ("<think>Hm</think>So", False), ("So far", False), ("a</think><think>b", True)],
)
def test_a_continued_message_tells_it_by_its_last_marker(continued: str, expected: bool) -> None:
    prompt = f"<|im_start|>assistant\n{continued}"
    assert starts_in_reasoning(REASONING_FORMATS["qwen3"], prompt, {}, continued) is expected


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_reasoning_tokens_are_counted_alike_however_they_come(size: int) -> None:
    think = ReasoningTokens(ends=((9,), (7, 8)), openings=((5,),))
    for ids, expected in [
        ([5, 1, 2, 3, 9, 4, 4], 3),
        ([1, 2, 3, 9, 4, 9], 3),
        ([1, 7, 7, 8, 4], 2),
        ([1, 2, 3], 3),
        ([9, 1], 0),
        ([5, 9], 0),
    ]:
        assert count(think, ids, size) == expected, ids
    messages = ReasoningTokens(ends=((9,),), openings=((5, 6),), comes_in_messages=True)
    for ids, expected in [([5, 6, 1, 2, 9, 3, 9, 5, 6, 1, 9], 3), ([1, 9], 0), ([5, 6, 1], 1), ([5, 1, 6], 0)]:
        assert count(messages, ids, size) == expected, ids


def count(markers: ReasoningTokens, ids: list[int], size: int) -> int:
    counter = ReasoningTokenCounter(markers)
    for start in range(0, len(ids), size):
        counter.push(ids[start : start + size])
    return counter.num_tokens


def test_an_answer_without_reasoning_has_no_reasoning_tokens() -> None:
    qwen = resolve_reasoning_parser("qwen3")
    for text, ids, expected in [("<think>a</think>b", [5, 1, 9, 2], 1), ("b", [2], 0)]:
        parser = create_parser(None, qwen, reasoning_tokens=ReasoningTokens(ends=((9,),), openings=((5,),)))
        parser.feed(text, ids)
        parser.finish()
        assert parser.num_reasoning_tokens == expected


def test_a_parser_tells_whether_it_is_inside_the_reasoning() -> None:
    parser = create_parser(None, resolve_reasoning_parser("qwen3"), is_reasoning=True)
    states = [parser.is_reasoning]
    for piece in ("Hm", "</thi", "nk>", "Yes"):
        parser.feed(piece)
        states.append(parser.is_reasoning)
    assert states == [True, True, True, False, False]


def test_markers_that_the_text_has_to_show_are_told() -> None:
    shown = shown_tokens(TOOL_FORMATS["kimi_k2"], REASONING_FORMATS["kimi_k2"])
    assert {"<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"} <= shown
    assert "<|channel|>" in shown_tokens(TOOL_FORMATS["openai"], None)
    assert {"[ARGS]", "[TOOL_CALLS]", "[CALL_ID]"} <= shown_tokens(TOOL_FORMATS["mistral"], None)
    assert shown_tokens(None, None) == frozenset()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A byte-level tokenizer that knows Qwen's markers and gpt-oss's as tokens of their own."""
    backend = tokenizers.Tokenizer(BPE({char: index for index, char in enumerate(ByteLevel.alphabet())}, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_tokens(["<think>", "</think>", "<tool_call>"])
    backend.add_special_tokens(["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>"])
    return Tokenizer(TokenizerParts(backend))


def test_the_ids_that_end_the_reasoning_are_those_of_its_marker(tokenizer: Tokenizer) -> None:
    close = tokenizer.convert_tokens_to_ids("</think>")
    assert reasoning_markers(REASONING_FORMATS["qwen3"], tokenizer, "").end_token_ids == [close]
    for name in ("mistral", "granite", "openai_gptoss"):
        markers = reasoning_markers(REASONING_FORMATS[name], tokenizer, "")
        assert tokenizer.decode(markers.answer_token_ids) == REASONING_FORMATS[name].closing[0]


@pytest.mark.parametrize("effort", ["think", "think_fast", "think_faster"])
def test_the_marker_that_ends_the_reasoning_is_that_of_the_prompts_effort(tokenizer: Tokenizer, effort: str) -> None:
    markers = reasoning_markers(REASONING_FORMATS["k2_horizon"], tokenizer, f"assistant\n<ifm|{effort}>\n")
    assert markers.begins_inside and tokenizer.decode(markers.end_token_ids) == f"</ifm|{effort}>"


@pytest.mark.parametrize(
    ("name", "text", "reasoning"),
    [
        ("qwen3", "<think>Hm.</think>Yes.", "Hm."),
        ("qwen3", "<think>Hm.<tool_call>{}", "Hm."),
        ("mistral", "[THINK]Hm.[/THINK]Yes.", "Hm."),
        (
            "openai_gptoss",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Y",
            "Hm.",
        ),
    ],
)
def test_reasoning_tokens_are_counted_with_the_models_own_ids(
    tokenizer: Tokenizer, name: str, text: str, reasoning: str
) -> None:
    reasoning_format = REASONING_FORMATS[name]
    markers = reasoning_tokens(reasoning_format, tokenizer, TOOL_FORMATS["hermes"].opening)
    parser = create_parser(TOOL_FORMATS["hermes"], reasoning_format, reasoning_tokens=markers)
    for token_id in tokenizer.encode(text):
        parser.feed(tokenizer.decode([token_id]), [token_id])
    parser.finish()
    assert parser.num_reasoning_tokens == len(tokenizer.encode(reasoning))
