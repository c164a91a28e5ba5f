"""Prompts from files: what a line may hold, and which line is to blame."""

from __future__ import annotations

import json

import pytest

from octavo.entrypoints.cli.prompts import check_sampling, items_from_jsonl, items_from_texts
from octavo.errors import InvalidRequestError


def written(tmp_path, *lines: str | bytes) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return str(path)


def test_a_line_is_text_or_messages_or_token_ids_with_sampling_of_its_own(tmp_path):
    messages = [{"role": "user", "content": "čau"}]
    path = written(
        tmp_path,
        '{"prompt": "a", "id": "x1", "temperature": 0}',
        "",
        json.dumps({"messages": messages}),
        '{"prompt_token_ids": [1, 2], "max_tokens": 3}',
    )
    text, chat, ids = items_from_jsonl(path)
    assert (text.text, text.id, text.sampling) == ("a", "x1", {"temperature": 0})
    assert chat.messages == messages and chat.text is None
    assert ids.token_ids == [1, 2] and ids.sampling == {"max_tokens": 3}
    assert text.origin.endswith("line 1") and chat.origin.endswith("line 3")  # blank lines count, but are no prompts


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1]",
        '"text"',
        "{}",
        '{"temperature": 1}',
        '{"prompt": "a", "messages": []}',
        '{"prompt": 3}',
        '{"prompt": null}',
        '{"messages": []}',
        '{"messages": [{"content": "a"}]}',
        '{"messages": "hello"}',
        '{"prompt_token_ids": [1.5]}',
        '{"prompt_token_ids": [true]}',
        '{"prompt_token_ids": "12"}',
        b'{"prompt": "\xff"}',
        "[" * 100_000,
    ],
    ids=lambda line: repr(line)[:30],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line):
    path = written(tmp_path, '{"prompt": "a"}', line)
    with pytest.raises(InvalidRequestError, match=r"prompts\.jsonl, line 2: "):
        items_from_jsonl(path)


@pytest.mark.parametrize("extra", ['"temperature": 3', '"temprature": 1', '"stop": [""]', '"n": 0'])
def test_bad_sampling_of_a_line_is_named_by_its_number_before_a_model_is_there(tmp_path, extra):
    items = items_from_jsonl(written(tmp_path, '{"prompt": "a"}', "", '{"prompt": "a", ' + extra + "}"))
    with pytest.raises(InvalidRequestError, match="line 3: "):
        check_sampling(items, {"max_tokens": 5})


def test_texts_become_prompts_or_conversations():
    assert [item.text for item in items_from_texts(["a", "b"], False, None)] == ["a", "b"]
    (item,) = items_from_texts(["a"], True, "be brief")
    assert item.messages == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}]
    assert item.text is None
