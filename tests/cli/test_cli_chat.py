"""`octavo chat` on a scripted engine: history, commands, refusals, interruption."""

from __future__ import annotations

import io
import os
import signal
import sys

import pytest


@pytest.fixture
def chat(octavo, engine, monkeypatch):
    """Run a chat with these lines on standard input."""

    def run(*lines: str, options: tuple[str, ...] = ()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return octavo("chat", *options)

    return run


def prompts(engine) -> list[str]:
    return [prompt["prompt"] for _, prompt, _ in engine.added]


def test_each_message_sees_the_conversation_so_far(chat, engine):
    result = chat("hi", "bye")
    assert result.status == 0
    assert prompts(engine) == ["user:hi", "user:hi assistant:user:hi  user:bye"]
    assert result.out.startswith("> hi\nuser:hi \n> bye\n")


def test_blank_lines_are_no_messages(chat, engine):
    chat("", "  ", "hi")
    assert prompts(engine) == ["user:hi"]


def test_clear_forgets_the_conversation_but_not_the_system_message(chat, engine):
    chat("a", "/clear", "b", options=("--system-prompt", "brief"))
    assert prompts(engine) == ["system:brief user:a", "system:brief user:b"]


def test_system_replaces_the_system_message(chat, engine):
    chat("/system long", "a", "/system longer still", "b")
    assert prompts(engine) == ["system:long user:a", "system:longer still user:b"]


def test_exit_leaves_at_once(chat, engine):
    assert chat("/exit", "never asked").status == 0
    assert engine.added == []


def test_an_unknown_command_is_explained_and_not_sent(chat, engine):
    result = chat("/sytem x", "/system")
    assert engine.added == [] and result.err.count("commands are") == 2


def test_quick_answers_one_message(octavo, engine):
    result = octavo("chat", "--quick", "one two", "--quiet")
    assert result.out == "two user:one \n" and result.err == ""


def test_help_names_the_commands_and_an_unknown_command_is_called_an_error(chat):
    assert chat("/help").err.startswith("commands are /clear")
    assert chat("/halp").err.startswith("octavo: error: commands are /clear")


def test_a_refused_message_ends_a_piped_chat(chat, engine):
    engine.refused = ("user:too long",)
    result = chat("too long", "never asked")
    assert result.status == 2 and "limit is 8192" in result.err and engine.added == []


def test_a_refused_message_at_a_terminal_leaves_the_conversation_as_it_was(chat, engine, monkeypatch):
    engine.refused = ("user:a assistant:user:a  user:too long",)
    monkeypatch.setattr("octavo.entrypoints.cli.chat._is_interactive", lambda: True)
    result = chat("a", "too long", "b")
    assert result.status == 0 and "/clear" in result.err
    assert prompts(engine) == ["user:a", "user:a assistant:user:a  user:b"]


def test_a_conversation_that_is_too_long_forgets_its_oldest_turns_and_says_so(chat, engine):
    engine.max_words = 5
    result = chat("a", "b", "c", options=("--system-prompt", "brief"))
    assert result.status == 0
    assert prompts(engine) == [
        "system:brief user:a",
        "system:brief user:a assistant:user:a system:brief  user:b",
        "system:brief user:c",  # after the first turn the second, whose answer is long, had to go too
    ]
    assert result.err.count("are forgotten]") == 1 and "its oldest 4 messages" in result.err


def test_a_message_that_is_too_long_alone_leaves_the_conversation_as_it_was(chat, engine, monkeypatch):
    engine.max_words = 4
    monkeypatch.setattr("octavo.entrypoints.cli.chat._is_interactive", lambda: True)
    result = chat("a", "far too long for such a model", "b")
    assert "max_model_len" in result.err and "forgotten" not in result.err
    assert prompts(engine) == ["user:a", "user:a assistant:user:a  user:b"]


def test_ctrl_c_stops_the_answer_and_not_the_program(chat, engine):
    def press_ctrl_c_once() -> None:
        engine.on_step = None
        os.kill(os.getpid(), signal.SIGINT)

    engine.on_step = press_ctrl_c_once
    result = chat("a b c", "d")
    assert result.status == 0
    assert len(engine.aborted) == 1
    assert prompts(engine) == ["user:a b c", "user:a b c assistant:c  user:d"]  # what was said stays in the history
    assert "stopped" in result.err


def test_n_other_than_one_is_refused(chat, engine):
    assert chat("a", options=("--n", "2")).status == 2
