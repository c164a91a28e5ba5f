#!/usr/bin/env python3
"""Figures of a server: ready after, idle, first token with a shared prefix, and what HTTP and the process cost.

usage: serving_figures.py [ready] [idle] [prefix] [overhead] [--model smollm2-135m-instruct] [--rounds 5]

Medians. The last line compares interleaved runs of the same work, 16 requests at a time, 128 tokens in and 64 out, in
an engine of this process and over HTTP. Processor time is told too: it says more where the machine has other work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time

from served import Served, events, serving

from octavo.entrypoints.bench.client import Client

NUM_IN, NUM_OUT, NUM_AT_ONCE, NUM_REQUESTS = 128, 64, 16, 64
NUM_SHARED = 112


def random_prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(100, 40_000) for _ in range(length)]


def show_ready(model: str, rounds: int) -> None:
    seconds, processor = [], []
    for _ in range(rounds):
        with serving(model) as server:
            seconds.append(server.ready_s)
            processor.append(server.processor_s())
    print(
        f"ready after {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), "
        f"{statistics.median(processor):.2f} s of processor time in two processes",
        flush=True,
    )


def show_idle(server: Served, seconds: float = 20.0) -> None:
    time.sleep(3)  # after the start, processes for later needs start too
    before = server.processor_s()
    time.sleep(seconds)
    print(f"idle: {100 * (server.processor_s() - before) / seconds:.2f} % of a processor", flush=True)


async def first_token_s(client: Client, prompt: list[int]) -> float:
    started = time.perf_counter()
    body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "temperature": 0, "stream": True}
    async for _ in events(client, "/v1/completions", body):
        return time.perf_counter() - started
    raise RuntimeError("no token came")


async def show_prefix(server: Served, rounds: int) -> None:
    client, rng = Client(server.url), random.Random(1)
    cold, warm = [], []
    for _ in range(4 * rounds):
        shared = random_prompt(rng, NUM_SHARED)
        cold.append(await first_token_s(client, shared + random_prompt(rng, NUM_IN - NUM_SHARED)))
        warm.append(await first_token_s(client, shared + random_prompt(rng, NUM_IN - NUM_SHARED)))
    client.close()
    ratio = statistics.median(after / before for before, after in zip(cold, warm, strict=True))
    cold_ms, warm_ms = 1e3 * statistics.median(cold), 1e3 * statistics.median(warm)
    print(
        f"first token of {NUM_IN}: cold {cold_ms:.1f} ms, {NUM_SHARED} shared {warm_ms:.1f} ms, ratio {ratio:.2f}",
        flush=True,
    )


async def http_tokens_per_s(server: Served, prompts: list[list[int]]) -> float:
    client, waiting, num_tokens = Client(server.url), iter(prompts), 0

    async def worker() -> None:
        nonlocal num_tokens
        for prompt in waiting:
            body = {"prompt": prompt, "max_tokens": NUM_OUT, "ignore_eos": True, "temperature": 0, "stream": True}
            async for event in events(client, "/v1/completions", body | {"stream_options": {"include_usage": True}}):
                if b'"completion_tokens"' in event:
                    num_tokens += (json.loads(event[len(b"data: ") :])["usage"] or {}).get("completion_tokens", 0)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(NUM_AT_ONCE)))
    client.close()
    assert num_tokens == len(prompts) * NUM_OUT, num_tokens
    return num_tokens / (time.perf_counter() - started)


def show_overhead(server: Served, model: str, rounds: int) -> None:
    from octavo import LLM, SamplingParams

    llm = LLM(model, max_num_seqs=NUM_AT_ONCE, max_model_len=1024)
    params = SamplingParams(max_tokens=NUM_OUT, ignore_eos=True, temperature=0)
    rng = random.Random(2)
    offline, http, offline_processor, http_processor = [], [], 0.0, 0.0
    for _ in range(rounds):
        prompts = [random_prompt(rng, NUM_IN) for _ in range(NUM_REQUESTS)]
        started, processor = time.perf_counter(), time.process_time()
        llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        offline.append(NUM_REQUESTS * NUM_OUT / (time.perf_counter() - started))
        offline_processor += time.process_time() - processor
        processor = server.processor_s()
        http.append(asyncio.run(http_tokens_per_s(server, prompts)))
        http_processor += server.processor_s() - processor
    ratio = statistics.median(over / in_process for in_process, over in zip(offline, http, strict=True))
    print(
        f"{NUM_AT_ONCE} at a time: offline {statistics.median(offline):.0f} tokens/s, over HTTP "
        f"{statistics.median(http):.0f}, that is {100 * ratio:.0f} % (pairs: "
        f"{', '.join(f'{100 * b / a:.0f}' for a, b in zip(offline, http, strict=True))}); processor time "
        f"{offline_processor:.1f} s and {http_processor:.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["ready", "idle", "prefix", "overhead"])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if "ready" in args.what:
        show_ready(args.model, args.rounds)
    with serving(args.model, "--max-num-seqs", str(NUM_AT_ONCE), "--max-model-len", "1024") as server:
        asyncio.run(http_tokens_per_s(server, [[1] * NUM_IN] * NUM_AT_ONCE))  # so that everything has been used once
        if "idle" in args.what:
            show_idle(server)
        if "prefix" in args.what:
            asyncio.run(show_prefix(server, args.rounds))
        if "overhead" in args.what:
            show_overhead(server, args.model, args.rounds)


if __name__ == "__main__":
    main()
