"""Ranks that torchrun starts: each runs the whole program, and all get the same tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo import LLM, AsyncLLM, EngineArgs, SamplingParams
from octavo.errors import ConfigError, UnsupportedError
from tests.engine.processes import SMALL, shared_memory, wait_until

ROOT = Path(__file__).parents[2]
PROMPTS = [[5, 6, 7], list(range(20, 60)), [9]]


def test_two_ranks_under_torchrun_get_the_tokens_of_tensor_parallel_workers(tiny_llama, tmp_path):
    before = shared_memory()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = [str(Path(__file__).with_name("launched.py")), str(tiny_llama), str(tmp_path), json.dumps(PROMPTS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [*command, *program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0]["tokens"] == ranks[1]["tokens"]
    if len(os.sched_getaffinity(0)) > 1:
        assert not set(ranks[0]["cores"]) & set(ranks[1]["cores"])
    llm = LLM(str(tiny_llama), tensor_parallel_size=2, max_num_seqs=4)
    params = SamplingParams(max_tokens=24, temperature=0.9, seed=5, ignore_eos=True)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs] == ranks[0]["tokens"]
    llm.llm_engine.shutdown()
    new = shared_memory() - before  # some may be of other engines on this machine, which start
    wait_until(lambda: not new & shared_memory())


@pytest.mark.parametrize(
    "variables, options, error, text",
    [
        ({}, {}, ConfigError, "torchrun's variables, got RANK=''"),
        ({"WORLD_SIZE": "3"}, {"tensor_parallel_size": 2}, ConfigError, "3 ranks .* tensor_parallel_size=2"),
        ({"WORLD_SIZE": "2"}, {"pipeline_parallel_size": 2}, UnsupportedError, "tensor parallelism only"),
    ],
)
def test_what_was_launched_must_be_what_was_configured(tiny_llama, monkeypatch, variables, options, error, text):
    if variables:
        for name, value in {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **variables}.items():
            monkeypatch.setenv(name, value)
    with pytest.raises(error, match=text):
        LLM(str(tiny_llama), distributed_executor_backend="external_launcher", **SMALL, **options)


def test_ranks_of_a_launcher_have_no_engine_process(tiny_llama):
    args = EngineArgs(model=str(tiny_llama), distributed_executor_backend="external_launcher", **SMALL)
    with pytest.raises(ConfigError, match="every rank runs its own engine"):
        AsyncLLM.from_engine_args(args)
