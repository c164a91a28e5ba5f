"""The four benchmarks as commands, on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.conftest import Server

SMALL = ("--num-gpu-blocks-override", 64, "--max-num-seqs", 4, "--no-use-tqdm-on-load")
PROMPTS = ("--input-len", 12, "--output-len", 6, "--num-prompts", 5)


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_serving_is_measured_and_saved(octavo: Callable, tiny: Server, tmp_path: Path, backend: str):
    said = octavo(
        *("bench", "serve", "--base-url", tiny.url, "--backend", backend, *PROMPTS, "--ignore-eos", "--disable-tqdm"),
        *("--max-concurrency", 2, "--num-warmups", 1, "--goodput", "e2el:60000", "ttft:60000", "--save-detailed"),
        *("--result-dir", tmp_path, "--result-filename", "r.json", "--plot-timeline", "--metadata", "night=1"),
        *("--metric-percentiles", "50,99", "--temperature", 0),
    )
    assert said.status == 0, said.err
    assert "Successful requests:                     5" in said.out and "P99 ITL (ms):" in said.out
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["completed"], record["failed"], record["night"]) == (5, 0, "1")
    assert record["output_lens"] == [6] * 5 and record["total_output_tokens"] == 30
    assert all(abs(length - 12) <= 2 for length in record["input_lens"])
    assert record["max_concurrent_requests"] <= 2 and record["request_goodput"] == record["request_throughput"]
    assert 0 < record["median_ttft_ms"] <= record["p99_ttft_ms"] <= record["p99_e2el_ms"]
    assert (tmp_path / "r.timeline.html").read_text().startswith("<!doctype html>")


def test_results_can_be_lines_of_one_file(octavo: Callable, tiny: Server, tmp_path: Path):
    for _ in range(2):
        octavo(
            *("bench", "serve", "--base-url", tiny.url, *PROMPTS, "--disable-tqdm", "--append-result"),
            *("--result-dir", tmp_path, "--result-filename", "all.jsonl"),
        )
    records = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [record["completed"] for record in records] == [5, 5]


def test_a_served_name_is_enough_to_find_the_tokenizer(octavo: Callable, tiny: Server):
    """The server's own list says what the name stands for; `tiny` is no model that could be loaded."""
    said = octavo("bench", "serve", "--base-url", tiny.url, "--model", "tiny", *PROMPTS, "--disable-tqdm")
    assert said.status == 0, said.err
    assert "Successful requests:                     5" in said.out


def test_a_server_that_refuses_is_told_with_its_words(octavo: Callable, tiny: Server):
    said = octavo(
        *("bench", "serve", "--base-url", tiny.url, *PROMPTS, "--disable-tqdm", "--extra-body", '{"top_p": 7}')
    )
    assert said.status == 1 and "Failed requests:                         5" in said.out
    assert said.err.count("status 400") == 1 and "top_p" in said.err


def test_no_server_is_one_line(octavo: Callable):
    said = octavo("bench", "serve", "--base-url", "http://127.0.0.1:9", *PROMPTS)
    assert said.status == 1 and said.err.startswith("octavo: error: the server does not answer")


@pytest.mark.parametrize(
    "flags",
    [
        ("--percentile-metrics", "ttft,x"),
        ("--metric-percentiles", "101"),
        ("--goodput", "x:1"),
        ("--header", "no-equals"),
        ("--request-rate", "0"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(octavo: Callable, flags: tuple):
    said = octavo("bench", "serve", "--base-url", "http://127.0.0.1:9", *flags)
    assert said.status == 2 and flags[0] in said.err


def test_latency_of_a_batch(octavo: Callable, tiny_folder: Path, tmp_path: Path):
    said = octavo(
        *("bench", "latency", "--model", tiny_folder, *SMALL, "--batch-size", 2, "--input-len", 5, "--output-len", 3),
        *("--num-iters-warmup", 1, "--num-iters", 3, "--output-json", tmp_path / "results" / "l.json"),
    )
    assert said.status == 0 and said.out.startswith("Avg latency:")
    record = json.loads((tmp_path / "results" / "l.json").read_text())
    assert len(record["latencies"]) == 3 and record["percentiles"]["99"] <= max(record["latencies"])


@pytest.mark.parametrize("flags", [(), ("--async-engine",)])
def test_throughput(octavo: Callable, tiny_folder: Path, tmp_path: Path, flags: tuple):
    said = octavo(
        *("bench", "throughput", "--model", tiny_folder, *SMALL, *PROMPTS, *flags),
        *("--output-json", tmp_path / "t.json"),
    )
    assert said.status == 0 and "Total num output tokens:  30" in said.out
    record = json.loads((tmp_path / "t.json").read_text())
    assert record["num_requests"] == 5
    assert record["requests_per_second"] == pytest.approx(5 / record["elapsed_time"])


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_answers_that_the_model_would_cut_short_are_refused(octavo: Callable, tiny_folder: Path, command: str):
    said = octavo("bench", command, "--model", tiny_folder, *SMALL, "--input-len", 12, "--output-len", 501)
    assert said.status == 2 and "max_model_len=512" in said.err and not said.out


@pytest.mark.parametrize("command", ["latency", "throughput", "startup", "serve"])
def test_a_result_that_cannot_be_written_is_told_before_anything_is_measured(
    octavo: Callable, tmp_path: Path, command: str
):
    flags = ("--output-json", tmp_path) if command != "serve" else ("--save-result", "--result-dir", "/dev/null")
    said = octavo("bench", command, "--model", "no-such-model", *flags)
    assert said.status == 1 and said.err.count("\n") == 1 and str(flags[-1]) in said.err, said.err


def test_startup_cold_and_warm(octavo: Callable, tiny_folder: Path, tmp_path: Path):
    rounds = ("--num-iters-cold", 1, "--num-iters-warmup", 0, "--num-iters-warm", 1)
    said = octavo("bench", "startup", "--model", tiny_folder, *SMALL, *rounds, "--output-json", tmp_path / "s.json")
    assert said.status == 0 and "Cold start (1 rounds)" in said.out, said.err
    record = json.loads((tmp_path / "s.json").read_text())
    for kind in ("cold", "warm"):
        assert 0 < record[f"{kind}_ready_s"]["mean"] < record[f"{kind}_first_token_s"]["mean"]


def test_a_start_that_fails_says_why(octavo: Callable, tiny_folder: Path):
    said = octavo(
        *("bench", "startup", "--model", tiny_folder, "--num-gpu-blocks-override", 1, "--num-iters-cold", 0),
        *("--num-iters-warmup", 1),
    )
    assert said.status == 1 and "the engine did not start" in said.err


def test_the_family_of_commands_is_listed(octavo: Callable):
    said = octavo("bench")
    assert said.status == 2 and "bench serve" in said.err and "generate" not in said.err.split("commands:")[1]
    assert "bench latency" in octavo("bench", "latencies").err
