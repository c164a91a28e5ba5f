"""`octavo generate` on a scripted engine: where prompts come from, where results go, and what happens when it fails."""

from __future__ import annotations

import io
import json
import os
import signal
import sys

import pytest

from octavo.errors import ConfigError
from tests.tiny_models import llama_config, write_tiny_model


@pytest.fixture
def stdin(monkeypatch):
    def feed(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return feed


def records(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_prompt_is_streamed_as_text(octavo, engine):
    result = octavo("generate", "one two three")
    assert result.status == 0
    assert result.out == "three two one \n"
    assert "1 request, 3 tokens" in result.err and "tokens/s" in result.err


def test_many_prompts_become_jsonl_in_their_order(octavo, engine):
    result = octavo("generate", "a b", "c d", "e f")  # the scripted engine finishes the last one first
    assert result.status == 0
    assert [(one["index"], one["prompt"], one["outputs"][0]["text"]) for one in records(result.out)] == [
        (0, "a b", "b a "),
        (1, "c d", "d c "),
        (2, "e f", "f e "),
    ]


def test_text_for_many_prompts_shows_each_question(octavo, engine):
    assert octavo("generate", "a b", "c", "--text").out == "> a b\nb a\n\n> c\nc\n\n"


def test_quiet_says_nothing_but_the_answer(octavo, engine):
    assert octavo("generate", "a", "--quiet").err == ""


def test_options_may_stand_between_prompts(octavo, engine):
    octavo("generate", "a", "--max_tokens", "5", "b")
    assert [prompt["prompt"] for _, prompt, _ in engine.added] == ["a", "b"]


def test_standard_input_is_one_prompt(octavo, engine, stdin):
    stdin("two lines\nčau\n".encode())
    octavo("generate")
    assert engine.added[0][1] == {"prompt": "two lines\nčau"}


def test_standard_input_that_is_not_utf8_is_refused(octavo, engine, stdin):
    stdin(b"\xff\xfe")
    result = octavo("generate")
    assert result.status == 2 and "UTF-8" in result.err


def test_jsonl_from_standard_input(octavo, engine, stdin):
    stdin(b'{"prompt": "a", "id": 7}\n{"prompt_token_ids": [5, 6]}\n')
    result = octavo("generate", "--file", "-")
    first, second = records(result.out)
    assert first["id"] == 7 and "prompt" not in second and second["outputs"][0]["text"] == "6 5 "


def test_earlier_results_stay_until_there_are_new_ones(octavo, engine, tmp_path, monkeypatch):
    out, new = tmp_path / "out.jsonl", tmp_path / "new.jsonl"
    out.write_text("results of many hours\n")
    engine.refused = ("far too long",)
    for file in (out, new):
        assert octavo("generate", "far too long", "--jsonl", str(file)).status == 2

    def fails(args, needs_template=False):
        raise ConfigError("no such model")

    monkeypatch.setattr("octavo.entrypoints.cli.session.Session.from_arguments", fails)
    assert octavo("generate", "a", "--jsonl", str(out)).status != 0
    assert out.read_text() == "results of many hours\n"
    assert not new.exists()


def test_new_results_replace_earlier_ones(octavo, engine, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("results of many hours\n" * 100)
    assert octavo("generate", "a", "--jsonl", str(out)).status == 0
    assert [json.loads(line)["prompt"] for line in out.read_text().splitlines()] == ["a"]
    assert octavo("generate", "a", "--jsonl", "/dev/null").status == 0


def test_jsonl_to_a_file(octavo, engine, tmp_path):
    out = tmp_path / "out.jsonl"
    result = octavo("generate", "a", "--jsonl", str(out))
    assert result.out == ""
    assert records(out.read_text())[0]["outputs"][0]["finish_reason"] == "stop"


def test_chat_wraps_each_prompt_in_a_conversation(octavo, engine):
    octavo("generate", "hi", "--chat", "--system-prompt", "brief")
    assert engine.added[0][1] == {"prompt": "system:brief user:hi"}


def test_a_line_overrides_the_command_line_which_overrides_the_model(octavo, engine, tmp_path):
    engine.defaults = {"temperature": 0.3, "top_p": 0.8, "top_k": 9}
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "temperature": 0.9}\n{"prompt": "b"}\n')
    octavo("generate", "--file", str(path), "--temperature", "0.6", "--top-p", "0.7")
    (_, _, first), (_, _, second) = engine.added
    assert (first.temperature, first.top_p, first.top_k) == (0.9, 0.7, 9)
    assert (second.temperature, second.top_p, second.top_k) == (0.6, 0.7, 9)


def test_a_bad_line_stops_everything_before_a_model_is_loaded(octavo, engine, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b", "top_p": 7}\n')
    result = octavo("generate", "--file", str(path))
    assert result.status == 2 and result.out == "" and engine.added == []
    assert result.err.count("\n") == 1 and "line 2: top_p" in result.err


def test_a_line_that_the_engine_refuses_is_named_and_nothing_runs(octavo, engine, tmp_path):
    engine.refused = ("b",)
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    result = octavo("generate", "--file", str(path))
    assert result.status == 2 and "line 2: the prompt has 9000 tokens" in result.err
    assert engine.running == {} and result.out == ""


def test_a_request_that_fails_is_reported_and_the_others_are_kept(octavo, engine):
    engine.failing = ("bad",)
    result = octavo("generate", "good", "bad")
    assert result.status == 1
    assert [one["outputs"][0]["finish_reason"] for one in records(result.out)] == ["stop", "error"]
    assert "prompt 2: the logits hold NaN" in result.err


def test_ctrl_c_ends_a_streamed_answer_between_steps(octavo, engine):
    steps = []

    def press_ctrl_c_in_the_second_step() -> None:
        steps.append(1)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    engine.on_step = press_ctrl_c_in_the_second_step
    before = signal.getsignal(signal.SIGINT)
    result = octavo("generate", "a b c d e f")
    assert result.status == 130 and result.out == "f e \n"
    assert engine.running == {} and len(engine.aborted) == 1
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    "arguments",
    [
        ("a", "--file", "x"),
        ("a", "--text", "--jsonl", "-"),
        ("--file", "x", "--chat"),
        ("a", "--system-prompt", "b"),
    ],
)
def test_contradictions_are_refused(octavo, engine, arguments):
    result = octavo("generate", *arguments)
    assert result.status == 2 and result.err.count("\n") == 1


def test_no_prompt_at_a_terminal_is_refused(octavo, engine, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    result = octavo("generate")
    assert result.status == 2 and "no prompt" in result.err


def test_an_empty_file_is_no_error(octavo, engine, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n")
    assert octavo("generate", "--file", str(path)).status == 0 and engine.added == []


def test_a_model_without_chat_template_is_told_before_its_weights_are_read(octavo, tmp_path):
    folder = write_tiny_model(tmp_path, llama_config())
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"never read")
    for arguments in (("generate", "hi", "--chat"), ("chat", "-q", "hi"), ("chat", "-q", "hi", "-dp", "2")):
        result = octavo(*arguments, "--model", str(folder))
        assert result.status == 2 and "has no default chat template" in result.err


def test_results_never_overwrite_their_prompts(octavo, engine, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n')
    (tmp_path / "link").symlink_to(path)
    for results in (str(path), str(tmp_path / "link")):
        result = octavo("generate", "--file", str(path), "--jsonl", results)
        assert result.status == 2 and "overwrite" in result.err
    assert path.read_text() == '{"prompt": "a"}\n'


def test_an_id_with_a_lone_surrogate_comes_back_escaped(octavo, engine, tmp_path):
    path, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"prompt": "a", "id": "\\ud800"}\n')
    assert octavo("generate", "--file", str(path), "--jsonl", str(out)).status == 0
    assert records(out.read_text(encoding="utf-8"))[0]["id"] == "\ud800"
