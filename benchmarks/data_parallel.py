"""What one front end for two engine replicas costs: against two engines that know nothing of each other.

Each replica and each single engine has one core; front ends run on the same cores. All streams are read token by token.

    python benchmarks/data_parallel.py [--model NAME] [--requests 16] [--tokens 128] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time

from octavo import AsyncLLM, EngineArgs, RequestOutputKind, SamplingParams

PROMPT_TOKENS = 32


def start(args: argparse.Namespace, **options: int) -> AsyncLLM:
    return AsyncLLM.from_engine_args(
        EngineArgs.from_kwargs(model=args.model, max_model_len=512, use_tqdm_on_load=False, **options)
    )


async def run(engine: AsyncLLM, num_requests: int, num_tokens: int) -> float:
    """Return tokens per second of requests that all start at once."""
    params = SamplingParams(
        max_tokens=num_tokens, ignore_eos=True, temperature=0.0, output_kind=RequestOutputKind.DELTA
    )

    async def one(index: int) -> None:
        prompt = [100 + index, *range(1000, 1000 + PROMPT_TOKENS - 1)]
        async for _ in engine.generate(prompt, params, str(index)):
            pass

    await engine.reset_prefix_cache()
    started = time.perf_counter()
    await asyncio.gather(*map(one, range(num_requests)))
    return num_requests * num_tokens / (time.perf_counter() - started)


async def measure(engine: AsyncLLM, args: argparse.Namespace, num_requests: int) -> float:
    await run(engine, num_requests, 8)
    return await run(engine, num_requests, args.tokens)


def replicas(args: argparse.Namespace, count: int) -> float:
    """One front end before `count` replicas."""
    engine = start(args, data_parallel_size=count)
    try:
        return asyncio.run(measure(engine, args, args.requests))
    finally:
        engine.shutdown()


def single(args: argparse.Namespace) -> None:
    """The part of one single engine: on the core that it is told, from the moment that it is told."""
    os.sched_setaffinity(0, [args.core])
    engine = start(args)

    async def work() -> float:
        await run(engine, args.requests, 8)
        print("ready", flush=True)
        sys.stdin.readline()
        return await run(engine, args.requests, args.tokens)

    print(asyncio.run(work()), flush=True)
    engine.shutdown()


def apart(args: argparse.Namespace, cores: list[int]) -> float:
    """Engines of their own, each with its part of the requests, at the same time: the sum of their speeds."""
    options = ["--model", args.model, "--tokens", str(args.tokens), "--requests", str(args.requests // len(cores))]
    children = [
        subprocess.Popen(
            [sys.executable, __file__, *options, "--core", str(core)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for core in cores
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    return sum(float(child.communicate()[0]) for child in children)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.core is not None:
        single(args)
        return
    cores = sorted(os.sched_getaffinity(0))[:2]
    assert len(cores) == 2, "needs two cores"
    os.sched_setaffinity(0, cores)
    together, separate = [], []
    for _ in range(args.rounds):
        together.append(replicas(args, 2))
        separate.append(apart(args, cores))
    one = replicas(args, 1)
    print(f"{args.requests} streams of {args.tokens} tokens, tokens/s:")
    print(f"  two replicas of one core, one front end  {statistics.median(together):8.0f}  {[*map(round, together)]}")
    print(f"  two engines of one core, two front ends  {statistics.median(separate):8.0f}  {[*map(round, separate)]}")
    print(f"  one engine of two cores                  {one:8.0f}")
    cost = 1 - statistics.median(together) / statistics.median(separate)
    print(f"  cost of the common front end             {cost:8.1%}")


if __name__ == "__main__":
    main()
