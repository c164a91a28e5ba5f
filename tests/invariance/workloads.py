"""Random workloads: prompts that share prefixes, every sampling feature, engines with tight budgets."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from octavo import SamplingParams
from tests.tiny_models import VOCAB_SIZE

MAX_MODEL_LEN = 256


@dataclass(frozen=True)
class Workload:
    """Requests, the options of the crowded engine that runs them together, and those that decide a result's bits."""

    prompts: list[list[int]]
    params: list[SamplingParams]
    priorities: list[int] | None
    engine: dict[str, Any]
    arithmetic: dict[str, Any]


def random_workload(seed: int, max_prompt_len: int = 90) -> Workload:
    """Return a workload whose engine must chunk, preempt and share."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, VOCAB_SIZE) for _ in range(max_prompt_len)]
    prompts = []
    for _ in range(rng.randint(2, 9)):
        own = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, max_prompt_len))]
        keep = rng.choice([0, 0, 16, 33, 48])
        prompts.append((shared[:keep] + own)[:max_prompt_len])
    params = [_random_params(rng) for _ in prompts]
    longest = max(len(p) + (q.max_tokens or 0) for p, q in zip(prompts, params, strict=True))
    block_size = rng.choice([4, 8, 16])
    # one or two of the longest sequences, over at most three groups of layers: preemption is certain for many
    num_blocks = 3 * (-(-longest // block_size) + 2) * rng.choice([1, 1, 2])
    max_num_seqs = rng.randint(2, 12)
    chunked, by_priority = rng.random() < 0.85, rng.random() < 0.3
    budget = rng.choice([5, 16, 33, 64, 256]) if chunked else MAX_MODEL_LEN
    engine = {
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max(max_num_seqs, budget),
        "enable_chunked_prefill": chunked,
        "scheduling_policy": "priority" if by_priority else "fcfs",
        "watermark": rng.choice([0.0, 0.0, 0.1]),
        "max_num_partial_prefills": rng.choice([1, 2, 8]),
        "block_size": block_size,
        "num_gpu_blocks_override": num_blocks,
        "enable_prefix_caching": rng.random() < 0.7,
        "long_prefill_token_threshold": rng.choice([0, 8, 32]),
        "scheduler_reserve_full_isl": rng.random() < 0.5,
    }
    priorities = [rng.randint(-2, 2) for _ in prompts] if by_priority else None
    engine["enforce_eager"] = rng.random() < 0.3
    arithmetic = {"kv_cache_dtype": rng.choice(["float32", "float16", "int8"])}
    return Workload(prompts, params, priorities, engine, arithmetic)


def _random_params(rng: random.Random) -> SamplingParams:
    greedy = rng.random() < 0.3
    options: dict[str, Any] = {
        "temperature": 0.0 if greedy else rng.choice([0.5, 1.0, 1.7]),
        "max_tokens": rng.randint(1, 40),
        "seed": rng.randrange(2**40),
        "n": 1 if greedy else rng.choice([1, 1, 1, 2, 3]),
        "ignore_eos": rng.random() < 0.5,
    }
    choices: list[tuple[float, str, Any]] = [
        (0.3, "top_p", rng.uniform(0.2, 1.0)),
        (0.3, "top_k", rng.randint(1, 50)),
        (0.2, "min_p", rng.uniform(0.0, 0.2)),
        (0.3, "repetition_penalty", rng.uniform(0.7, 1.6)),
        (0.2, "presence_penalty", rng.uniform(-2, 2)),
        (0.2, "frequency_penalty", rng.uniform(-2, 2)),
        (0.3, "logprobs", rng.randint(0, 5)),
        (0.15, "prompt_logprobs", rng.randint(0, 3)),
        (0.2, "stop", [rng.choice("aeiou"), rng.choice([" t", "in", "\n"])]),
        (0.2, "logit_bias", {rng.randrange(VOCAB_SIZE): rng.uniform(-5, 5) for _ in range(3)}),
        (0.1, "allowed_token_ids", rng.sample(range(VOCAB_SIZE), 40)),
        (0.1, "bad_words", ["e", "the"]),
        (0.2, "stop_token_ids", [rng.randrange(3, VOCAB_SIZE)]),
    ]
    for probability, name, value in choices:
        if rng.random() < probability:
            options[name] = value
    if rng.random() < 0.3:
        options["min_tokens"] = rng.randint(0, options["max_tokens"])
    return SamplingParams(**options)
