#!/usr/bin/env python3
"""Python cost of one decode step: everything but the ops, at 32 and 256 running requests.

usage: step_cost.py [--model FOLDER-OR-NAME] [--steps 200]

The engine runs as always; its ops are wrapped and the time inside them is summed. What is left of a step
is Python: scheduling, rows and inputs, glue between ops, sampling bookkeeping, output processing. The wrappers
own cost (about 0.1 us a call) counts as Python. Greedy requests, no stop strings, FINAL_ONLY, as `LLM.generate` runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from octavo import LLM, SamplingParams


class TimedOps:
    """Stands in for an ops backend and sums the seconds spent inside it."""

    def __init__(self, ops: Any) -> None:
        self.name = ops.name
        self.seconds = 0.0
        self.calls = 0
        for name in dir(ops):
            method = getattr(ops, name)
            if callable(method) and not name.startswith("_"):
                setattr(self, name, self._timed(method))

    def _timed(self, method: Any) -> Any:
        clock = time.perf_counter

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            result = method(*args, **kwargs)
            self.seconds += clock() - start
            self.calls += 1
            return result

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    llm = LLM(model=args.model, max_num_seqs=256, max_model_len=512, enable_prefix_caching=True)
    engine = llm.llm_engine
    runner = engine.engine_core.engine_core.executor.worker.model_runner
    timed = TimedOps(runner.ops)
    runner.ops = runner._sampler._ops = timed
    params = SamplingParams(max_tokens=args.steps + 40, ignore_eos=True, temperature=0)
    for num_running in (1, 32, 256):
        for index in range(num_running):
            engine.add_request(f"{num_running}-{index}", {"prompt_token_ids": [5 + index, 7, 11]}, params)
        for _ in range(10):
            engine.step()
        costs, walls, calls = [], [], 0
        for _ in range(args.steps):
            timed.seconds, timed.calls, start = 0.0, 0, time.perf_counter()
            engine.step()
            wall = time.perf_counter() - start
            costs.append(1e3 * (wall - timed.seconds))
            walls.append(1e3 * wall)
            calls = timed.calls
        print(
            f"{num_running:4d} running: Python {statistics.median(costs):.3f} ms of {statistics.median(walls):.1f} ms "
            f"a step, {calls} op calls",
            flush=True,
        )
        while engine.has_unfinished_requests():
            engine.step()


if __name__ == "__main__":
    main()
