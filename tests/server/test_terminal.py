"""`octavo chat` and `octavo complete` against a server, ours or any other with OpenAI's API."""

from __future__ import annotations

import io
import sys

import pytest

from octavo.entrypoints.cli.main import main
from tests.server.conftest import Engine, Server


@pytest.fixture
def octavo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def run(*arguments: str, lines: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_chat_goes_on_with_what_was_said(octavo, real: Server):
    greedy = {"temperature": 0, "max_tokens": 12}
    first = real.chat("Say hi", **greedy).json["choices"][0]["message"]
    question = [{"role": "user", "content": "Say hi"}, first, {"role": "user", "content": "Again"}]
    second = real.chat(messages=question, **greedy).json["choices"][0]["message"]
    flags = ("--url", f"{real.url}/v1", "--temperature", "0", "--max-tokens", "12")
    status, out, err = octavo("chat", *flags, lines="Say hi\nAgain\n")
    assert status == 0
    assert out == f"> Say hi\n{first['content']}\n> Again\n{second['content']}\n"
    assert err.count("[12 tokens") == 2


def test_reasoning_is_told_apart_and_does_not_go_on(octavo, scripted_engine: Engine):
    """The answer is on standard output, what the model thought before it on standard error."""
    server = scripted_engine.serve(chat_template="{{ messages | length }}<think>\n")
    budget = {"thinking_token_budget": 4, "temperature": 0, "max_tokens": 30}
    message = server.chat("x", **budget).json["choices"][0]["message"]
    flags = ("--url", f"{server.url}/v1", "--temperature", "0", "--max-tokens", "30", "--thinking-token-budget", "4")
    status, out, err = octavo("chat", *flags, "-q", "x")
    assert status == 0 and out == f"{message['content']}\n" and err.startswith(message["reasoning"])


def test_texts_are_continued_line_by_line_or_at_once(octavo, real: Server):
    text = "The capital of France is"
    expected = real.complete(prompt=text, temperature=0, max_tokens=4).json["choices"][0]["text"]
    flags = ("--url", f"{real.url}/v1", "--temperature", "0", "--max-tokens", "4", "--quiet")
    assert octavo("complete", *flags, "-q", text) == (0, expected + "\n", "")
    assert octavo("complete", *flags, lines=f"{text}\n\n{text}\n") == (0, f"{expected}\n" * 2, "")


def test_refusals_and_unreachable_servers_are_told_in_one_line(octavo, real: Server, tiny_engine: Engine):
    keyed = tiny_engine.serve(api_key=["k"])
    cases = (
        (("--url", f"{real.url}/v1", "--model-name", "nobody"), 2, "nobody"),
        (("--url", f"{keyed.url}/v1"), 2, "--api-key or OCTAVO_API_KEY"),
        (("--url", "http://127.0.0.1:9/v1"), 1, "octavo serve"),
        (("--url", real.url), 2, "should end in /v1"),
        (("--url", "ftp://x"), 2, "ftp://x"),
        (("--url", f"{real.url}/v1", "--max-model-len", "10"), 2, "max-model-len"),
    )
    for flags, code, word in cases:
        status, _, err = octavo("chat", "-q", "Hi", *flags)
        assert (status, err.count("\n")) == (code, 1) and word in err
    assert octavo("chat", "-q", "Hi", "--url", f"{keyed.url}/v1", "--api-key", "k", "--max-tokens", "1")[0] == 0
