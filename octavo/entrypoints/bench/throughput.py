"""Measure how many requests and tokens per second an engine gets through offline, all requests at once."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.entrypoints.bench.dataset_arguments import add_dataset_arguments, dataset_options
from octavo.entrypoints.bench.datasets import BenchPrompt, DatasetOptions, make_prompts
from octavo.entrypoints.bench.offline import (
    add_engine_arguments,
    check_lengths,
    check_result_file,
    engine_args,
    load_llm,
    write_json,
)
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.types.outputs import RequestOutput
    from octavo.types.sampling_params import SamplingParams

USAGE = "octavo bench throughput [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("benchmark", "what is measured")
    group.add_argument("--backend", choices=("octavo", "vllm"), default="octavo", help="both mean Octavo's engine")
    group.add_argument("--n", type=int, default=1, metavar="N", help="answers per prompt (default: 1)")
    group.add_argument("--async-engine", action="store_true", help="use AsyncLLM: the engine in its own process")
    group.add_argument("--disable-detokenize", action="store_true", help="token ids only, no text")
    group.add_argument("--output-json", metavar="FILE", help="write the result here")
    add_dataset_arguments(parser, default="random")
    add_engine_arguments(parser)


@dataclass(frozen=True)
class _Measured:
    outputs: Sequence[RequestOutput]
    seconds: float


def run(args: argparse.Namespace) -> int:
    if args.n < 1:
        raise ConfigError(f"--n must be at least 1, got {args.n}")
    dataset = dataset_options(args, getattr(args, "seed", 0))  # what is wrong with it is said before a model is loaded
    check_result_file(args.output_json)
    if args.async_engine:
        from octavo.entrypoints.event_loop import run as run_in_loop

        measured = run_in_loop(_run_async(args, dataset))
    else:
        measured = _run_sync(args, dataset)
    seconds = max(measured.seconds, 1e-9)
    num_prompt_tokens = sum(len(output.prompt_token_ids or ()) for output in measured.outputs)
    num_output_tokens = sum(len(completion.token_ids) for output in measured.outputs for completion in output.outputs)
    num_tokens = num_prompt_tokens + num_output_tokens
    num_requests = len(measured.outputs)
    print(
        f"Throughput: {num_requests / seconds:.2f} requests/s, {num_tokens / seconds:.2f} total tokens/s, "
        f"{num_output_tokens / seconds:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {num_prompt_tokens}")
    print(f"Total num output tokens:  {num_output_tokens}")
    write_json(
        args.output_json,
        {
            "elapsed_time": measured.seconds,
            "num_requests": num_requests,
            "total_num_tokens": num_tokens,
            "requests_per_second": num_requests / seconds,
            "tokens_per_second": num_tokens / seconds,
            "output_tokens_per_second": num_output_tokens / seconds,
        },
    )
    return 0


def _run_sync(args: argparse.Namespace, dataset: DatasetOptions) -> _Measured:
    llm = load_llm(args)
    prompts = make_prompts(dataset, llm.get_tokenizer())
    check_lengths(prompts, llm.model_config.max_model_len)
    params = [_params(prompt, args) for prompt in prompts]
    started = time.perf_counter()
    outputs = llm.generate([prompt.text for prompt in prompts], params)
    return _Measured(outputs, time.perf_counter() - started)


async def _run_async(args: argparse.Namespace, dataset: DatasetOptions) -> _Measured:
    import asyncio

    from octavo.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(engine_args(args))
    try:
        prompts = make_prompts(dataset, engine.get_tokenizer())
        check_lengths(prompts, engine.model_config.max_model_len)

        async def one(index: int, prompt: BenchPrompt) -> RequestOutput:
            outputs = [output async for output in engine.generate(prompt.text, _params(prompt, args), str(index))]
            return outputs[-1]

        started = time.perf_counter()
        outputs = await asyncio.gather(*(one(index, prompt) for index, prompt in enumerate(prompts)))
        return _Measured(outputs, time.perf_counter() - started)
    finally:
        engine.shutdown()


def _params(prompt: BenchPrompt, args: argparse.Namespace) -> SamplingParams:
    from octavo.types.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        n=args.n,
        temperature=1.0,
        ignore_eos=True,
        max_tokens=prompt.output_len,
        detokenize=not args.disable_detokenize,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
