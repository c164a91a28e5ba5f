"""What it costs to divide one model among processes: throughput beside one process with as many threads.

    python benchmarks/parallel_cost.py [--model smollm2-135m-instruct] [--batch 8 32] [--tokens 64] [--tp 2] [--pp 2]

Every line is a process of its own: one process with a thread for each core; tensor parallel and pipeline parallel, one
core each. Of the ranks' exchanges it tells the microseconds of a step, how many bytes a rank copies in them, and how
long copying as much takes alone, without anybody to wait for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

COLLECTIVES = ("all_gather", "all_reduce")


class TapeTimes:
    """Mixed into every worker: times each op of the tape."""

    model_runner: Any

    def start_timing(self) -> None:
        self._tape().set_timing(True)

    def collective_ns(self) -> list[int]:
        """Return [nanoseconds in exchanges, nanoseconds in all] since start_timing."""
        times = self._tape().times()
        return [sum(ns for name, ns in times if name in COLLECTIVES), sum(ns for _, ns in times)]

    def _tape(self) -> Any:
        return self.model_runner._bound.forward.__self__


def run_one(options: dict[str, Any], batches: list[int], num_tokens: int) -> list[dict[str, float]]:
    """Return for each batch size the decoding rate and the exchanges' time a step."""
    from octavo import LLM, SamplingParams

    llm = LLM(
        kv_cache_memory_bytes=2**28,
        max_model_len=1024,
        worker_extension_cls="benchmarks.parallel_cost.TapeTimes",
        **options,
    )
    prompts = [{"prompt_token_ids": [1 + (7 * row + 3 * i) % 4000 for i in range(16)]} for row in range(max(batches))]
    results = []
    for batch in batches:
        best: dict[str, float] = {"tokens_per_s": 0.0}
        for _ in range(3):
            seconds = []
            llm.collective_rpc("start_timing")
            for count in (1, 1 + num_tokens):  # the difference is decoding alone
                params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
                begin = time.perf_counter()
                llm.generate(prompts[:batch], params, use_tqdm=False)
                seconds.append(time.perf_counter() - begin)
            rate = batch * num_tokens / (seconds[1] - seconds[0])
            if rate > best["tokens_per_s"]:
                times = llm.collective_rpc("collective_ns")
                num_steps = num_tokens + 2
                best = {
                    "tokens_per_s": rate,
                    "exchange_us": min(own for own, _ in times) / num_steps / 1000,  # the slower rank waits for nobody
                    "forward_us": max(total for _, total in times) / num_steps / 1000,
                }
        results.append(best)
    return results


def exchanged_floats(model: str, tp_size: int) -> int:
    """Return how many floats a rank writes and reads for one token in all layers."""
    from octavo.config import EngineArgs
    from octavo.engine.resolve import resolve

    config = resolve(EngineArgs(model=model, skip_tokenizer_init=True)).checkpoint.config
    heads = config.int("num_attention_heads")
    hidden, features = config.int("hidden_size"), config.int("intermediate_size")
    attended = heads * config.int("head_dim", hidden // heads)
    row = attended + hidden + features + hidden
    return config.int("num_hidden_layers") * (row + row // tp_size)


def copy_us(num_floats: int) -> float:
    """Return how long one core needs to copy so many floats, in pieces as large as an exchange's."""
    source, target = np.ones(num_floats, np.float32), np.empty(num_floats, np.float32)
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - begin)
    return min(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print("RESULT " + json.dumps(run_one(json.loads(args.one), args.batch, args.tokens)))
        return
    arrangements: dict[str, dict[str, Any]] = {
        "one process": {},
        f"tensor parallel {args.tp}": {"tensor_parallel_size": args.tp},
        f"pipeline parallel {args.pp}": {"pipeline_parallel_size": args.pp},
    }
    alone: list[float] = []
    for name, options in arrangements.items():
        command = [sys.executable, __file__, "--one", json.dumps({"model": args.model, **options})]
        command += ["--batch", *map(str, args.batch), "--tokens", str(args.tokens)]
        environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OCTAVO_LOG_LEVEL": "WARNING"}
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        line = next((line for line in output.stdout.splitlines() if line.startswith("RESULT ")), None)
        if line is None:
            print(f"{name}: failed\n{output.stderr[-2000:]}")
            continue
        for index, result in enumerate(json.loads(line.removeprefix("RESULT "))):
            batch = args.batch[index]
            if not options:
                alone.append(result["tokens_per_s"])
            share = f"{100 * result['tokens_per_s'] / alone[index]:.0f}%" if len(alone) > index else "-"
            text = f"{name:20} batch {batch:3}  {result['tokens_per_s']:8.1f} tokens/s  {share:>5}"
            if name.startswith("tensor"):
                floats = exchanged_floats(args.model, args.tp) * batch
                text += f"  exchanges {result['exchange_us']:.0f} of {result['forward_us']:.0f} us a step"
                text += f"; copying their {4 * floats / 1e6:.2f} MB alone takes {copy_us(floats):.0f} us"
            print(text, flush=True)


if __name__ == "__main__":
    main()
