"""Batch files: every line gets its answer or its error, in order, and the same answer as over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.entrypoints.cli.main import main
from octavo.entrypoints.openai.batch import BatchCounts, run_batch
from tests.server.conftest import Engine, Server

GREEDY = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}
HI = [{"role": "user", "content": "Hi"}]


def line(custom_id: object, url: str = "/v1/completions", method: str = "POST", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": method, "url": url, "body": body}


def run(engine: Engine, server: Server, *lines: object, max_in_flight: int = 8) -> tuple[list[dict], BatchCounts]:
    """Run a batch and return its results; what is not bytes is written as JSON."""
    written: list[bytes] = []
    data = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    counts = engine.call(run_batch(server.state, data, written.append, max_in_flight))
    return [json.loads(one) for one in written], counts


def test_answers_are_those_of_the_server_in_the_order_of_the_lines(tiny_engine: Engine, tiny: Server):
    lengths = [30, 1, 12, 2, 25, 3]  # later lines finish first
    fields = [{"prompt": f"number {n}", **GREEDY, "max_tokens": n} for n in lengths]
    results, counts = run(tiny_engine, tiny, *(line(f"r{i}", **one) for i, one in enumerate(fields)), max_in_flight=4)
    assert [result["custom_id"] for result in results] == [f"r{i}" for i in range(6)]
    assert (counts.completed, counts.failed) == (6, 0)
    for result, one in zip(results, fields, strict=True):
        response = result["response"]
        assert response["status_code"] == 200 and response["request_id"] and result["error"] is None
        assert response["body"]["choices"] == tiny.complete(**one).json["choices"]


def test_chats_and_completions_mix(tiny_engine: Engine, tiny: Server):
    chat = line("c", "/v1/chat/completions", messages=HI, **GREEDY)
    results, _ = run(tiny_engine, tiny, chat, line("d", prompt="abc", **GREEDY))
    assert results[0]["response"]["body"]["choices"] == tiny.chat("Hi", **GREEDY).json["choices"]
    assert results[1]["response"]["body"]["object"] == "text_completion"


@pytest.mark.parametrize(
    ("bad", "status", "parameter"),
    [
        (b"{not json", 400, None),
        (b'"text"', 400, None),
        (b"\xff\xfe", 400, None),
        ({"method": "POST", "url": "/v1/completions", "body": {}}, 400, "custom_id"),
        (line(7, prompt="x"), 400, "custom_id"),
        (line("first", prompt="x"), 400, "custom_id"),  # used by the line before
        (line("b", method="GET", prompt="x"), 400, "method"),
        (line("b", url="/v1/images/generations", prompt="x"), 404, "url"),
        ({"custom_id": "b", "method": "POST", "url": "/v1/completions"}, 400, "body"),
        (line("b", prompt="x", stream=True), 400, "stream"),
        (line("b", prompt="x", top_p=9), 400, "top_p"),
        (line("b", prompt="x", max_tokens="many"), 400, "max_tokens"),
        (line("b", prompt="x", model="other"), 404, "model"),
        (
            line("b", "/v1/chat/completions", messages=HI, response_format={"type": "xml"}),
            400,
            "response_format.type",
        ),
    ],
)
def test_a_bad_line_gets_an_error_and_its_neighbours_their_answers(
    tiny_engine: Engine, tiny: Server, bad: object, status: int, parameter: str | None
):
    good = {"prompt": "abc", **GREEDY}
    results, counts = run(tiny_engine, tiny, line("first", **good), bad, line("last", **good))
    assert [result["response"]["status_code"] for result in results] == [200, status, 200]
    assert results[0]["response"]["body"]["choices"] == results[2]["response"]["body"]["choices"]
    error = results[1]["error"]
    assert (results[1]["custom_id"] is None) == error["message"].startswith("line 2: ")  # else its id tells which it is
    assert error["message"] == results[1]["response"]["body"]["error"]["message"] and error["code"]
    assert results[1]["response"]["body"]["error"]["param"] == parameter
    assert (counts.completed, counts.failed) == (2, 1)


def test_errors_name_the_field_of_the_line(tiny_engine: Engine, tiny: Server):
    chat = line("c", "/v1/chat/completions", messages=HI, logprobs=True, top_logprobs=21)
    marked = b"\xef\xbb\xbf" + json.dumps(line("d", prompt="abc", **GREEDY)).encode()  # as Windows' editors begin files
    results, counts = run(tiny_engine, tiny, chat, marked)
    assert results[0]["response"]["body"]["error"]["param"] == "top_logprobs" and counts.completed == 1


def test_blank_lines_are_nothing(tiny_engine: Engine, tiny: Server):
    assert run(tiny_engine, tiny, b"", b"  \n") == ([], BatchCounts(0, 0))


def test_the_command_reads_and_writes_files(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [line("a", "/v1/chat/completions", messages=HI, **GREEDY), line("b", prompt="x", n=0)]
    source.write_text("\n".join(map(json.dumps, lines)))
    options = ["--model", str(tiny_folder), "--num-gpu-blocks-override", "64", "--no-use-tqdm-on-load"]
    assert main(["run-batch", "-i", str(source), "-o", str(target), *options]) == 0
    results = [json.loads(one) for one in target.read_text().splitlines()]
    assert [result["response"]["status_code"] for result in results] == [200, 400]
    assert "[1 request answered, 1 failed]" in capsys.readouterr().err


def test_a_missing_file_is_told_before_a_model_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["run-batch", "-i", str(tmp_path / "no"), "-o", str(tmp_path / "out"), "--model", "no-such-model"]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("run-batch", "-i", "https://h/a.jsonl", "-o", "-"),
        ("run-batch", "-i", "-", "-o", "s3://h/a"),
        ("generate", "-f", "http://h/a"),
    ],
)
def test_urls_are_no_files_and_the_error_says_how_they_are_read(arguments, capsys: pytest.CaptureFixture[str]):
    assert main([*arguments, "--model", "no-such-model"]) == 2
    assert 'is a URL, not a file; name "-" and use a pipe' in capsys.readouterr().err


def test_requests_and_earlier_results_are_never_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text("{}\n")
    target.write_text("earlier\n")
    assert main(["run-batch", "-i", str(path), "-o", str(path), "--model", "no-such-model"]) == 2
    assert "would overwrite" in capsys.readouterr().err and path.read_text() == "{}\n"
    assert main(["run-batch", "-i", str(path), "-o", str(target), "--model", "no-such-model"]) == 1
    assert target.read_text() == "earlier\n"
    assert main(["run-batch", "-i", str(path), "-o", str(tmp_path / "new"), "--model", "no-such-model"]) == 1
    assert not (tmp_path / "new").exists()
