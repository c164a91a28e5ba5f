"""Measure how long one batch of equal requests takes, from first to last token, offline."""

from __future__ import annotations

import argparse
import random
import time
from typing import TYPE_CHECKING

from octavo.entrypoints.bench.datasets import BenchPrompt
from octavo.entrypoints.bench.offline import (
    add_engine_arguments,
    check_lengths,
    check_result_file,
    load_llm,
    write_json,
)
from octavo.entrypoints.bench.statistics import mean, percentile
from octavo.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from octavo.entrypoints.llm import LLM
    from octavo.types.prompts import TokensPrompt

USAGE = "octavo bench latency [options]"
_PERCENTS = (10, 25, 50, 75, 90, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("benchmark", "what is measured")
    numbers = (
        ("--input-len", 32, "tokens per prompt"),
        ("--output-len", 128, "tokens per answer"),
        ("--batch-size", 8, "prompts at a time"),
        ("--n", 1, "answers per prompt"),
        ("--num-iters-warmup", 10, "rounds before the measured ones"),
        ("--num-iters", 30, "measured rounds"),
    )
    for flag, default, text in numbers:
        group.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    group.add_argument("--use-beam-search", action="store_true", help="search with n beams")
    group.add_argument("--disable-detokenize", action="store_true", help="token ids only, no text")
    group.add_argument("--profile", action="store_true", help="not built")
    group.add_argument("--output-json", metavar="FILE", help="write the result here")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    _check(args)
    check_result_file(args.output_json)
    llm = load_llm(args)
    check_lengths([BenchPrompt("", args.input_len, args.output_len)], llm.model_config.max_model_len)
    source = random.Random(getattr(args, "seed", 0))
    vocab_size = min(llm.model_config.vocab_size, 10_000)  # as in vLLM: ids that every model has
    prompts: list[TokensPrompt] = [
        {"prompt_token_ids": [source.randrange(vocab_size) for _ in range(args.input_len)]}
        for _ in range(args.batch_size)
    ]
    for _ in range(args.num_iters_warmup):
        _round_s(llm, prompts, args)
    latencies = [_round_s(llm, prompts, args) for _ in range(args.num_iters)]
    percentiles = {percent: percentile(latencies, percent) for percent in _PERCENTS}
    print(f"Avg latency: {mean(latencies)} seconds")
    for percent, value in percentiles.items():
        print(f"{percent}% percentile latency: {value} seconds")
    write_json(
        args.output_json,
        {
            "avg_latency": mean(latencies),
            "latencies": latencies,
            "percentiles": {str(percent): value for percent, value in percentiles.items()},
        },
    )
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.profile:
        raise UnsupportedError("--profile is not supported: profiling is not built; leave it out")
    for name in ("input_len", "output_len", "batch_size", "n", "num_iters"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")


def _round_s(llm: LLM, prompts: list[TokensPrompt], args: argparse.Namespace) -> float:
    """Return the seconds of one round. Cached prefixes are forgotten before: every round computes its prompts."""
    from octavo.types.sampling_params import BeamSearchParams, SamplingParams

    llm.reset_prefix_cache()
    started = time.perf_counter()
    if args.use_beam_search:
        search = BeamSearchParams(beam_width=args.n, max_tokens=args.output_len, ignore_eos=True)
        llm.beam_search(prompts, search)
    else:
        params = SamplingParams(
            n=args.n,
            temperature=1.0,
            top_p=1.0,
            ignore_eos=True,
            max_tokens=args.output_len,
            detokenize=not args.disable_detokenize,
        )
        llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - started
