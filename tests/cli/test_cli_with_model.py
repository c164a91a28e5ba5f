"""The command line as a process of its own, with a real model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = "import sys; from octavo.entrypoints.cli.main import main; sys.exit(main())"

pytestmark = pytest.mark.model


def launch(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LAUNCH, *arguments]
    return subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, check=False)


@pytest.mark.native_ops
def test_a_batch_from_standard_input_gives_what_the_python_api_gives(tmp_path):
    lines = [
        {"id": "text", "prompt": "The capital of France is", "logprobs": 1},
        {"id": "ids", "prompt_token_ids": [504, 3575, 282, 4649, 314], "max_tokens": 3},
        {"id": "chat", "messages": [{"role": "user", "content": "Say hi"}], "n": 2, "temperature": 1, "seed": 5},
    ]
    out = tmp_path / "out.jsonl"
    arguments = [
        "--file",
        "-",
        "--jsonl",
        str(out),
        "--temperature",
        "0",
        "--max-tokens",
        "6",
        "--max_model_len",
        "512",
    ]
    result = launch("generate", *arguments, stdin="".join(json.dumps(line) + "\n" for line in lines))
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert "3 requests" in result.stderr and len(result.stderr.splitlines()) == 1
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [record["id"] for record in records] == ["text", "ids", "chat"]

    llm = LLM("smollm2-135m-instruct", max_model_len=512, kv_cache_memory_bytes=2**27)
    greedy = SamplingParams(temperature=0, max_tokens=6)
    (text,) = llm.generate("The capital of France is", greedy, use_tqdm=False)
    (chat,) = llm.chat(lines[2]["messages"], SamplingParams(n=2, seed=5, max_tokens=6), use_tqdm=False)
    assert records[0]["outputs"][0]["text"] == text.outputs[0].text
    assert records[0]["outputs"][0]["logprobs"][0][0]["token_id"] == text.outputs[0].token_ids[0]
    assert len(records[1]["outputs"][0]["token_ids"]) == 3
    assert [one["text"] for one in records[2]["outputs"]] == [one.text for one in chat.outputs]
    assert records[2]["num_prompt_tokens"] == len(chat.prompt_token_ids)


def test_a_chat_from_a_pipe_remembers():
    questions = "What is the capital of France?\nWhat is it famous for?\n"
    result = launch("chat", "--temperature", "0", "--max-tokens", "24", stdin=questions)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.split("> ")[1:]
    assert "Paris" in first
    assert "Eiffel" in second  # which it can only know from the question before
