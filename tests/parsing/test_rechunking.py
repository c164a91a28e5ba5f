"""Every format: what its models write comes out right, and the same however a stream is cut."""

from __future__ import annotations

import json
import os
import random
import zlib

import pytest

from octavo.parsing.tool_formats import TOOL_FORMATS
from tests.parsing.encoders import ENCODERS, JSON_ENCODERS, Call
from tests.parsing.helpers import Result, cut, maker, streamed, whole

# Cuts for each format; all of them with OCTAVO_ALL_SPLITS=1, which takes minutes.
NUM_SPLITS = 10_000 if os.environ.get("OCTAVO_ALL_SPLITS") == "1" else 120

WEATHER: Call = ("get_weather", {"city": "Zürich", "unit": "celsius"})
SHELL: Call = ("run", {"command": "mkdir test/{a,b && echo \"}]{\" 'it''s' \\ \\n\n\ttab", "timeout": None})
NESTED: Call = (
    "book",
    {
        "items": [{"id": 1, "tags": ["a", "b}", '["{']}, {"id": 2, "tags": [], "more": {"x": {"y": [[1], []]}}}],
        "first": {"id": -3},
        "note": "日本語 🙂 naïve, 100% \\ \"quoted\" 'single'",
        "when": None,
    },
)
EMPTY: Call = ("now", {})
NUMBERS: Call = ("calc", {"x": -12.5, "big": 123456789012345678901234567890, "ok": True, "off": False, "e": 1e-07})
MARKUP: Call = ("say", {"text": '<b>bold</b> </param> <tool> [x] ```json {"a":1}``` <| |> & "name": 5'})
EMPTY_TEXT: Call = ("say", {"text": ""})
OWN_MARKERS: Call = ("say", {"text": "</tool_call> <tool_call> [TOOL_CALLS] </tool_calls> <|call|> ]; {"})

CONVERSATIONS: tuple[tuple[str, tuple[Call, ...], str], ...] = (
    ("", (WEATHER,), ""),
    ("I look that up.\n\n", (SHELL, NESTED), ""),
    ("", (EMPTY, NUMBERS, EMPTY_TEXT, EMPTY), ""),
    ("Well: 3 < 4, a[0] = {1}.\n", (MARKUP, WEATHER), "\nThat was it; <end> [1] {2}."),
)
IN_JSON = ("", (OWN_MARKERS, WEATHER), "")
# Text may not follow where nothing marks the end of a message, or everything after a marker is a header.
NO_TEXT_AROUND = {"openai"}


def outputs(name: str) -> list[tuple[str, Result]]:
    """Return (text, what has to come out) of everything that a format is tried with."""
    found = []
    for encode in ENCODERS[name]:
        for before, calls, after in (*CONVERSATIONS, *((IN_JSON,) if name in JSON_ENCODERS else ())):
            if name in NO_TEXT_AROUND:
                before = after = ""
            text = before + encode(calls) + after
            expected = tuple((call, json.dumps(arguments), True) for call, arguments in calls)
            found.append((text, Result(None, (before + after) or None, expected)))
    return found


def assert_is(found: Result, expected: Result, text: str) -> None:
    assert found.reasoning == expected.reasoning, text
    assert found.content == expected.content, text
    values = [(name, json.loads(arguments), is_complete) for name, arguments, is_complete in found.calls]
    assert values == [(name, json.loads(arguments), is_complete) for name, arguments, is_complete in expected.calls], (
        text
    )


def test_every_format_is_tried() -> None:
    assert set(ENCODERS) == set(TOOL_FORMATS)


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_outputs_come_out_right_whole_by_the_character_and_cut_anywhere(name: str) -> None:
    make = maker(name)
    generator = random.Random(zlib.crc32(name.encode()))
    texts = outputs(name)
    results = []
    for text, expected in texts:
        results.append(whole(make, text))
        assert_is(results[-1], expected, text)
        assert streamed(make, text) == results[-1], text
    for split in range(NUM_SPLITS):
        index = split % len(texts)
        pieces = cut(texts[index][0], generator)
        assert streamed(make, pieces) == results[index], pieces


@pytest.mark.parametrize("name", sorted(JSON_ENCODERS))
def test_arguments_written_as_json_are_passed_on_as_they_are_written(name: str) -> None:
    make = maker(name)
    odd = '{ "a":1.50,\n "a": 2e5, "b" :[ ] ,"u":"\\u00e9\\/" }'
    for encode in ENCODERS[name]:
        text = encode([("f", {"MARK": 1})])
        for mark in ('{"MARK": 1}', '{"MARK":1}', '{\n  "MARK": 1\n}'):
            text = text.replace(mark, odd)
        assert odd in text
        assert whole(make, text).calls == (("f", odd, True),)
        assert streamed(make, text).calls == (("f", odd, True),)


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_cut_off_anywhere_streams_and_wholes_agree_and_no_argument_is_made_up(name: str) -> None:
    """Every length at which max_tokens could end an output."""
    make = maker(name)
    for encode in ENCODERS[name]:
        text = encode([WEATHER, ("run", {"command": 'a{"b', "timeout": 7})])
        full = whole(make, text)
        for length in range(len(text)):
            result = whole(make, text[:length])
            assert streamed(make, text[:length]) == result
            for call, (full_name, arguments, _) in zip(result.calls, full.calls, strict=False):
                assert call[0] == full_name
                assert arguments.startswith(call[1]) or not call[2], (text[:length], call)
                assert call[2] == (call[1] == arguments), (text[:length], call)
            if not result.calls:
                assert (result.content or "") == text[:length]
