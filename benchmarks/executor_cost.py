#!/usr/bin/env python3
"""What a worker in a process of its own costs: throughput beside one in the same process, and a step's broadcast.

usage: executor_cost.py [--model NAME] [--batches 1,8,32] [--rounds 5] [--readers 1,2]

Engines take turns, best round each. A broadcast counts from a step of 256 running requests, encoded here, until a
process on the other side has decoded it; the median over 2,000 steps, one every 2 ms as if something computed between.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import struct
import time

from octavo import LLM, SamplingParams
from octavo.executor.broadcast import BroadcastReader, BroadcastWriter, create_memory
from octavo.executor.messages import RunStep, decode_command, encode
from octavo.types.step import CachedRequestData, SchedulerOutput


def throughput(llm: LLM, batch: int, num_tokens: int = 48) -> float:
    """Return output tokens a second of one round."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [[100 + i] * 16 for i in range(batch)]
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return batch * num_tokens / (time.perf_counter() - start)


def compare(model: str, batches: list[int], rounds: int) -> None:
    options = {"max_model_len": 512, "kv_cache_memory_bytes": 2**28}
    engines = {name: LLM(model, distributed_executor_backend=name, **options) for name in ("uni", "mp")}
    for batch in batches:
        rates: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(rounds):
            for name, llm in engines.items():
                rates[name].append(throughput(llm, batch))
        best = {name: max(found) for name, found in rates.items()}
        share = 100 * best["mp"] / best["uni"]
        print(f"batch {batch:3}: uni {best['uni']:8.1f} tokens/s, mp {best['mp']:8.1f}, {share:.1f} %")
    for llm in engines.values():
        llm.llm_engine.shutdown()


def step_of(num_requests: int) -> SchedulerOutput:
    """Return a decode step as the scheduler sends it; every 16th request has a new block."""
    ids = [f"{i}-{i:032x}" for i in range(num_requests)]
    cached = CachedRequestData(
        request_ids=ids,
        new_block_ids=[([i],) if i % 16 == 0 else None for i in range(num_requests)],
        num_computed_tokens=[500 + i for i in range(num_requests)],
    )
    return SchedulerOutput(
        scheduled_cached_requests=cached,
        num_scheduled_tokens=dict.fromkeys(ids, 1),
        total_num_scheduled_tokens=num_requests,
    )


def broadcast_cost(num_readers: int, num_steps: int = 2000) -> None:
    step = step_of(256)
    memory = create_memory(num_readers)
    pairs = [socket.socketpair() for _ in range(num_readers)]
    reports = [os.pipe() for _ in range(num_readers)]
    for index in range(num_readers):
        if os.fork() == 0:
            for ours, _ in pairs:
                ours.close()
            reader = BroadcastReader(memory, num_readers, index, pairs[index][1])
            for _ in range(num_steps):
                decode_command(reader.read())
                os.write(reports[index][1], struct.pack("d", time.perf_counter()))
            os._exit(0)
    writer = BroadcastWriter(memory, [ours for ours, _ in pairs])
    taken, sent = [], []
    for number in range(num_steps):
        start = time.perf_counter()
        writer.write(encode(RunStep(number, step, True)))
        sent.append(time.perf_counter() - start)
        ends = [struct.unpack("d", os.read(report, 8))[0] for report, _ in reports]
        taken.append(max(ends) - start)
        time.sleep(0.002)
    print(
        f"{len(encode(RunStep(0, step, True)))} bytes to {num_readers} readers: {_us(sent)} us for the writer, "
        f"{_us(taken)} us until all have decoded it"
    )


def _us(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e6:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--readers", default="1,2")
    options = parser.parse_args()
    for num_readers in map(int, options.readers.split(",")):
        broadcast_cost(num_readers)
    compare(options.model, [int(batch) for batch in options.batches.split(",")], options.rounds)


if __name__ == "__main__":
    main()
