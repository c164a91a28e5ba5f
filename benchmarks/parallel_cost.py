"""What it costs to divide one model among processes: throughput beside one process with as many threads.

    python benchmarks/parallel_cost.py [--model smollm2-135m-instruct] [--batch 8 32] [--tokens 64] [--rounds 5]
                                       [--tp 2] [--pp 2]

Engines take turns, best round each: one process with a thread for each core; tensor parallel and pipeline parallel, one
core each. Of the ranks' exchanges it tells the microseconds of a step, how many bytes a rank copies in them, and how
long copying as much takes alone, without anybody to wait for.
"""

from __future__ import annotations

import argparse
import os
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


def run_once(llm: Any, batch: int, num_tokens: int) -> dict[str, float]:
    """Return the decoding rate of one round, and the exchanges' time a step."""
    from octavo import SamplingParams

    prompts = [{"prompt_token_ids": [1 + (7 * row + 3 * i) % 4000 for i in range(16)]} for row in range(batch)]
    seconds = []
    llm.collective_rpc("start_timing")
    for count in (1, 1 + num_tokens):  # the difference is decoding alone
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        begin = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        seconds.append(time.perf_counter() - begin)
    times, num_steps = llm.collective_rpc("collective_ns"), num_tokens + 2
    return {
        "tokens_per_s": batch * num_tokens / (seconds[1] - seconds[0]),
        "exchange_us": min(own for own, _ in times) / num_steps / 1000,  # the slower rank waits for nobody
        "forward_us": max(total for _, total in times) / num_steps / 1000,
    }


def exchanged_floats(model: str, tp_size: int) -> int:
    """Return how many floats a rank writes and reads for one token, in all layers and for its logits."""
    from octavo.config import EngineArgs
    from octavo.engine.resolve import resolve

    config = resolve(EngineArgs(model=model, skip_tokenizer_init=True)).checkpoint.config
    heads = config.int("num_attention_heads")
    hidden, features = config.int("hidden_size"), config.int("intermediate_size")
    attended = heads * config.int("head_dim", hidden // heads)
    row = attended + hidden + features + hidden
    vocab = config.int("vocab_size")
    return config.int("num_hidden_layers") * (row + row // tp_size) + vocab + vocab // tp_size


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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=2, help="1: without")
    args = parser.parse_args()
    os.environ.setdefault("OCTAVO_LOG_LEVEL", "WARNING")
    from octavo import LLM

    arrangements = {"one process": {}, f"tensor parallel {args.tp}": {"tensor_parallel_size": args.tp}}
    if args.pp > 1:
        arrangements[f"pipeline parallel {args.pp}"] = {"pipeline_parallel_size": args.pp}
    # As few blocks as will do: all are in use after the first round, and later ones do not pay for fresh pages.
    num_blocks = 1 + max(args.batch) * (2 + (16 + args.tokens) // 16)
    common = {"model": args.model, "max_model_len": 1024, "num_gpu_blocks_override": num_blocks, "block_size": 16}
    extension = "benchmarks.parallel_cost.TapeTimes"
    engines = {name: LLM(**common, worker_extension_cls=extension, **sizes) for name, sizes in arrangements.items()}
    best: dict[tuple[str, int], dict[str, float]] = {}
    for _ in range(args.rounds):
        for batch in args.batch:
            for name, llm in engines.items():
                found = run_once(llm, batch, args.tokens)
                best[name, batch] = max(found, best.get((name, batch), found), key=lambda run: run["tokens_per_s"])
    for (name, batch), result in sorted(best.items(), key=lambda item: (item[0][1], list(engines).index(item[0][0]))):
        share = result["tokens_per_s"] / best["one process", batch]["tokens_per_s"]
        text = f"{name:20} batch {batch:3}  {result['tokens_per_s']:8.1f} tokens/s  {100 * share:4.0f}%"
        if name.startswith("tensor"):
            floats = exchanged_floats(args.model, args.tp) * batch
            text += f"  exchanges {result['exchange_us']:.0f} of {result['forward_us']:.0f} us a step"
            text += f"; copying their {4 * floats / 1e6:.2f} MB alone takes {copy_us(floats):.0f} us"
        print(text, flush=True)
    for llm in engines.values():
        llm.llm_engine.shutdown()


if __name__ == "__main__":
    main()
