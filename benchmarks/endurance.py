#!/usr/bin/env python3
"""What a server holds after much work: memory, descriptors, tasks and blocks must be as before.

usage: endurance.py [soak] [aborts] [streams] [--model smollm2-135m-instruct] [--requests 2000] [--aborts 10000]

soak:    mixed requests to all endpoints, whole and streamed, some left half-way
aborts:  requests that are left before or after their first token
streams: 500 streams at the same time, none of which may fail
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from served import Body, Served, events, post, serving

from octavo.entrypoints.bench.client import Client

NUM_AT_ONCE = 32
seeds = itertools.count()  # no request is made twice
WORDS = ("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not")


def say(rng: random.Random, most: int = 60) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def random_request(rng: random.Random) -> tuple[str, Body]:
    """Return a path and a body that is right."""
    limits: Body = {"temperature": rng.choice([0, 0.7, 1.5]), "stream": rng.random() < 0.5}
    messages = [{"role": "user", "content": say(rng)}]
    warm = {"temperature": 0.7}  # several answers at temperature 0 are refused
    num_tokens = rng.randint(1, 24)
    kind = rng.randrange(6)
    if kind == 0:
        extra = rng.choice([{}, {"n": 3, **warm}, {"logprobs": 2}, {"echo": True}, {"stop": ["the", "."]}, {"seed": 5}])
        return "/v1/completions", {"prompt": say(rng), "max_tokens": num_tokens, **limits, **extra}
    if kind == 1:
        return "/v1/completions", {"prompt": [say(rng), say(rng)], "max_tokens": num_tokens, **limits}
    if kind == 2:
        extra = rng.choice([{}, {"n": 2, **warm}, {"logprobs": True, "top_logprobs": 3}, {"frequency_penalty": 1.0}])
        return "/v1/chat/completions", {"messages": messages, "max_tokens": num_tokens, **limits, **extra}
    if kind == 3:
        return "/v1/responses", {"input": say(rng), "max_output_tokens": max(num_tokens, 16), **limits}
    if kind == 4:
        return "/v1/messages", {"model": "", "messages": messages, "max_tokens": num_tokens, **limits}
    return "/tokenize", {"prompt": say(rng)}


async def mixed(client: Client, rng: random.Random) -> str:
    """Make one request of any kind; return what became of it."""
    path, body = random_request(rng)
    if not body.get("stream"):
        await post(client, path, body)
        return "whole"
    leave_after = rng.randint(1, 4) if rng.random() < 0.2 else None
    num_events = 0
    async for _ in events(client, path, body):
        num_events += 1
        if num_events == leave_after:
            return "left"
    return "streamed"


async def aborted(client: Client, rng: random.Random) -> str:
    """Ask for much and leave: at once, or after the first token."""
    body = {"prompt": say(rng), "max_tokens": 400, "ignore_eos": True, "stream": True}
    if rng.random() < 0.5:
        async for _ in events(client, "/v1/completions", body):
            return "left after the first token"
    asking = asyncio.create_task(post(client, "/v1/completions", {**body, "stream": False}))
    await asyncio.sleep(rng.random() * 0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    return "left at once"


async def work(server: Served, count: int, one: Callable[[Client, random.Random], Awaitable[str]]) -> Counter[str]:
    """Do a thing many times, NUM_AT_ONCE at the same time; return what became of each."""
    client, outcomes, numbers = Client(server.url), Counter[str](), iter(itertools.islice(seeds, count))

    async def worker() -> None:
        for number in numbers:
            try:
                outcomes[await one(client, random.Random(number))] += 1
            except (RuntimeError, OSError) as error:
                outcomes[f"FAILED: {error}"] += 1

    await asyncio.gather(*(worker() for _ in range(NUM_AT_ONCE)))
    client.close()
    return outcomes


async def many_streams(server: Served, count: int) -> Counter[str]:
    """Open all streams at the same time."""
    client = Client(server.url)

    async def one(number: int) -> str:
        body = {"prompt": say(random.Random(number), 20), "max_tokens": 16, "ignore_eos": True, "stream": True}
        try:
            return f"{len([event async for event in events(client, '/v1/completions', body)])} events"
        except (RuntimeError, OSError) as error:
            return f"FAILED: {error}"

    outcomes = Counter(await asyncio.gather(*map(one, range(count))))
    client.close()
    return outcomes


def at_rest(server: Served) -> None:
    """Wait until nothing runs and what was left has been noticed."""
    for _ in range(200):
        time.sleep(0.05)
        if server.held().num_requests == 0:
            break
    time.sleep(0.3)


def report(server: Served, name: str, rounds: int, run: Callable[[], Awaitable[Counter[str]]]) -> None:
    """Run something several times and show what the server holds before and after each."""
    print(f"{name}\n  before: {server.held()}")
    for number in range(rounds):
        started = time.monotonic()
        outcomes = asyncio.run(run())  # type: ignore[arg-type]
        seconds = time.monotonic() - started
        at_rest(server)
        print(f"  after {number + 1}:  {server.held()}; {seconds:.1f} s, {dict(outcomes)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["soak", "aborts", "streams", []], default=[])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--aborts", type=int, default=10_000)
    args = parser.parse_args()
    wanted = args.what or ["soak", "aborts", "streams"]
    # a small KV cache: its memory counts from the first use of each block, and all are used before the first look
    with serving(args.model, "--max-model-len", "1024", "--num-gpu-blocks-override", "1024") as server:
        asyncio.run(work(server, 400, mixed))
        at_rest(server)
        if "soak" in wanted:
            report(
                server,
                f"{args.requests} mixed requests, in quarters",
                4,
                lambda: work(server, args.requests // 4, mixed),
            )
        if "aborts" in wanted:
            report(server, f"{args.aborts} aborts, in quarters", 4, lambda: work(server, args.aborts // 4, aborted))
        if "streams" in wanted:
            report(server, "500 streams at once, twice", 2, lambda: many_streams(server, 500))


if __name__ == "__main__":
    main()
