#!/usr/bin/env python3
"""One decode step taken apart: each op's time on the tape, sampling ops, and Python, at several batch sizes.

usage: step_cost.py [--model NAME] [--batches 1,32,256] [--steps 60] [--context 3] [--kv-cache-dtype auto]

The engine runs as always. The tape measures its own calls; ops outside it (sampling) are wrapped and timed. What is
left of a step is Python: scheduling, rows and inputs, sampling bookkeeping, output processing. Greedy requests, no stop
strings, FINAL_ONLY, as `LLM.generate` runs. Figures are medians over the steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from typing import Any

from octavo import LLM, SamplingParams
from octavo.types.sampling_params import RequestOutputKind

OUTSIDE_THE_TAPE = ("has_nan", "argmax", "top_logprobs", "log_softmax", "apply_penalties", "sample")


class TimedOps:
    """Stands in for an ops backend and sums the seconds spent in the ops that no tape holds."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self.seconds = 0.0
        for name in OUTSIDE_THE_TAPE:
            setattr(self, name, self._timed(getattr(ops, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def _timed(self, method: Any) -> Any:
        clock = time.perf_counter

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            result = method(*args, **kwargs)
            self.seconds += clock() - start
            return result

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--batches", default="1,32,256")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--context", type=int, default=3, help="tokens of each prompt")
    parser.add_argument("--kv-cache-dtype", default="auto")
    args = parser.parse_args()
    batches = [int(batch) for batch in args.batches.split(",")]
    llm = LLM(
        model=args.model,
        max_num_seqs=max(batches),
        max_model_len=args.context + args.steps + 50,
        kv_cache_dtype=args.kv_cache_dtype,
    )
    for num_running in batches:
        measure(llm, num_running, args.steps, args.context)


def measure(llm: LLM, num_running: int, num_steps: int, context: int) -> None:
    engine = llm.llm_engine
    runner: Any = engine.engine_core.engine_core.executor.worker.model_runner  # type: ignore[attr-defined]
    tape: Any = runner._bound.forward.__self__
    timed = TimedOps(runner.ops)
    runner._sampler._ops = timed
    params = SamplingParams(
        max_tokens=num_steps + 40, ignore_eos=True, temperature=0, output_kind=RequestOutputKind.FINAL_ONLY
    )
    for index in range(num_running):
        prompt = [5 + index] + [7 + i % 100 for i in range(context - 1)]
        engine.add_request(f"{num_running}-{index}", {"prompt_token_ids": prompt}, params)
    while runner._rows.num_computed_tokens[:num_running].min() < context + 2:
        engine.step()
    walls, pythons = [], []
    by_name: dict[str, list[float]] = {}
    for _ in range(num_steps):
        tape.set_timing(True)
        timed.seconds, start = 0.0, time.perf_counter()
        engine.step()
        wall = time.perf_counter() - start
        totals: Counter[str] = Counter({"sampling ops": round(1e9 * timed.seconds)})
        for name, time_ns in tape.times():
            totals[name] += time_ns
        for name, time_ns in totals.items():
            by_name.setdefault(name, []).append(time_ns / 1e6)
        inside = sum(totals.values()) / 1e6
        walls.append(1e3 * wall)
        pythons.append(1e3 * wall - inside)
    tape.set_timing(False)
    wall, python = statistics.median(walls), statistics.median(pythons)
    print(f"{num_running} running: {wall:.2f} ms a step", flush=True)
    print(f"    Python             {python:8.3f} ms {100 * python / wall:5.1f}%, at best {min(pythons):.3f} ms")
    for name, times in sorted(by_name.items(), key=lambda item: -statistics.median(item[1])):
        median = statistics.median(times)
        print(f"    {name:18} {median:8.3f} ms {100 * median / wall:5.1f}%", flush=True)
    engine.abort_request([f"{num_running}-{index}" for index in range(num_running)])
    while engine.has_unfinished_requests():
        engine.step()


if __name__ == "__main__":
    main()
