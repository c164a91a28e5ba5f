#!/usr/bin/env python3
"""Prefill and decode rates of Octavo beside llama.cpp, ik_llama.cpp and OpenVINO: one run, same work, interleaved.

usage: versus_peers.py --llamacpp PATH/llama-batched-bench [--model NAME_OR_GGUF] [--llamacpp-models A.gguf B.gguf]
                       [--ik-python ENV/bin/python --ik-models A.gguf B.gguf] [--batches 1,8,32] [--rounds 5]
                       [--openvino-python ENV/bin/python --openvino-model Q8_0.gguf]

Every round runs every engine once at every batch size. Medians are printed with each peer's share of Octavo's rate.
Prompts are random token ids; end of sequence is ignored; decoding is greedy. llama.cpp measures prefill and decode
itself; the others' prefill comes from a run that generates one token, decode from the difference to the whole run.
Peers are installed by hand, each in an environment of its own. `llama-quantize --allow-requantize IN OUT Q4_0` makes
other formats of one model, `benchmarks/random_gguf.py` models of any size. ik_llama.cpp comes as the package
ik-llama-cpp-python; it repacks the weights as they are loaded. Like llama-batched-bench it does not sample.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Rates = tuple[float, float]
"""Prefill and decode, tokens/s."""


class Octavo:
    """Octavo in this process."""

    def __init__(self, model: str, max_batch: int, max_len: int, options: dict[str, object]) -> None:
        from octavo import LLM

        arguments = {"max_num_seqs": max_batch, "max_model_len": max_len, "enable_prefix_caching": False, **options}
        self._llm = LLM(model=model, **arguments)  # type: ignore[arg-type]

    def generate(self, prompts: list[list[int]], num_tokens: int) -> None:
        from octavo import SamplingParams

        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0)
        outputs = self._llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == num_tokens for output in outputs)


class Served:
    """A peer in a Python environment of its own; this file is also the program that runs there."""

    def __init__(self, python: str, *command: str) -> None:
        self._process = subprocess.Popen(
            [python, __file__, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def generate(self, prompts: list[list[int]], num_tokens: int) -> None:
        assert self._process.stdin
        print(json.dumps([prompts, num_tokens]), file=self._process.stdin, flush=True)
        self._answer()

    def _answer(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.strip() == "done":
                return
        raise SystemExit("a peer's process ended; see its message above")


def serve_openvino(model: str) -> None:
    """Generate what comes as JSON lines on standard input; answer each with "done"."""
    import numpy as np
    import openvino as ov  # type: ignore[import-not-found]
    import openvino_genai as genai  # type: ignore[import-not-found]

    config = genai.SchedulerConfig()
    config.cache_size, config.max_num_seqs, config.enable_prefix_caching = 2, 64, False
    pipeline = genai.ContinuousBatchingPipeline(model, config, "CPU", {})
    print("done", flush=True)
    for line in sys.stdin:
        prompts, num_tokens = json.loads(line)
        wish = genai.GenerationConfig()
        wish.max_new_tokens, wish.ignore_eos, wish.do_sample = num_tokens, True, False
        arrays = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        pipeline.generate(arrays, [wish] * len(prompts))
        print("done", flush=True)


def serve_ik(model: str, threads: int, max_batch: int, max_len: int) -> None:
    """Generate what comes as JSON lines on standard input; answer each with "done"."""
    import ik_llama_cpp._ctypes_api as api  # type: ignore[import-not-found]

    wish = api.llama_model_default_params()
    wish.repack_tensors = True
    loaded = api.llama_model_load_from_file(model.encode(), wish)
    form = api.llama_context_default_params()
    form.n_ctx, form.n_batch, form.n_ubatch, form.n_seq_max = max_batch * max_len, 2048, 512, max_batch
    form.n_threads = form.n_threads_batch = threads
    form.flash_attn = True
    context = api.llama_init_from_model(loaded, form)
    batch = api.llama_batch_init(2048, 0, 1)

    def forward(tokens: list[tuple[int, int, int, bool]]) -> None:
        """Compute (token, position, sequence, whether its logits are wanted)."""
        for start in range(0, len(tokens), 2048):
            part = tokens[start : start + 2048]
            batch.n_tokens = len(part)
            for index, (token, position, sequence, wanted) in enumerate(part):
                batch.token[index], batch.pos[index], batch.n_seq_id[index] = token, position, 1
                batch.seq_id[index][0], batch.logits[index] = sequence, int(wanted)
            if api.llama_decode(context, batch):
                raise SystemExit("llama_decode failed")

    print("done", flush=True)
    for line in sys.stdin:
        prompts, num_tokens = json.loads(line)
        length = len(prompts[0])
        api.llama_kv_cache_clear(context)
        forward(
            [(token, at, s, at == length - 1) for s, prompt in enumerate(prompts) for at, token in enumerate(prompt)]
        )
        for number in range(num_tokens - 1):
            forward([(prompt[number % length], length + number, s, True) for s, prompt in enumerate(prompts)])
        print("done", flush=True)


def rates(generate: Callable[[list[list[int]], int], None], prompts: list[list[int]], output_len: int) -> Rates:
    """Measure prefill by a run that generates one token, decode by the difference to one that generates them all."""

    def seconds(num_tokens: int) -> float:
        start = time.perf_counter()
        generate(prompts, num_tokens)
        return time.perf_counter() - start

    first, whole = seconds(1), seconds(output_len)
    decode = (
        len(prompts) * (output_len - 1) / (whole - first) if whole > first else float("nan")
    )  # nan: too noisy to tell
    return len(prompts) * len(prompts[0]) / first, decode


def random_prompts(batch: int, input_len: int, vocabulary: int) -> list[list[int]]:
    return [[random.randrange(100, vocabulary) for _ in range(input_len)] for _ in range(batch)]


def measured(generate: Callable[[list[list[int]], int], None], batch: int, args: argparse.Namespace) -> Rates:
    return rates(generate, random_prompts(batch, args.input_len, args.vocabulary), args.output_len)


def measured_by_llamacpp(model: str, batch: int, args: argparse.Namespace) -> Rates:
    length = args.input_len + args.output_len
    command = [args.llamacpp, "-m", model, "-c", str(2 * batch * length), "-b", "2048", "-ub", "512"]
    command += ["-t", str(args.threads), "-npp", str(args.input_len), "-ntg", str(args.output_len), "-npl", str(batch)]
    libraries = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(args.llamacpp))
    done = subprocess.run(command, env=libraries, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 10 and re.fullmatch(r"\d+", cells[0]):
            return float(cells[5]), float(cells[7])
    raise SystemExit(f"llama-batched-bench printed no result for {model}:\n{done.stderr[-2000:]}")


def contenders(args: argparse.Namespace) -> dict[str, Callable[[int], Rates]]:
    """Return what measures each engine at a batch size, Octavo first."""
    octavo = Octavo(args.model, max(args.batches), args.input_len + args.output_len + 16, json.loads(args.options))
    measure: dict[str, Callable[[int], Rates]] = {"octavo": lambda batch: measured(octavo.generate, batch, args)}
    for model in args.llamacpp_models:
        name = f"llama.cpp {Path(model).stem}"
        measure[name] = lambda batch, model=model: measured_by_llamacpp(model, batch, args)  # type: ignore[misc]
    for model in args.ik_models:
        limits = map(str, (args.threads, max(args.batches), args.input_len + args.output_len))
        ik = Served(args.ik_python, "--serve-ik", model, *limits)
        name = f"ik_llama.cpp {Path(model).stem}"
        measure[name] = lambda batch, ik=ik: measured(ik.generate, batch, args)  # type: ignore[misc]
    if args.openvino_model:
        openvino = Served(args.openvino_python, "--serve-openvino", args.openvino_model)
        name = f"OpenVINO {Path(args.openvino_model).stem}"
        measure[name] = lambda batch: measured(openvino.generate, batch, args)
    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="Octavo's")
    parser.add_argument("--options", default="{}", help="JSON of further EngineArgs")
    parser.add_argument("--llamacpp", help="path of llama-batched-bench")
    parser.add_argument("--llamacpp-models", nargs="*", default=[], help="GGUF files, each a contender")
    parser.add_argument("--ik-python", default=sys.executable)
    parser.add_argument("--ik-models", nargs="*", default=[], help="GGUF files, each a contender")
    parser.add_argument("--openvino-python", default=sys.executable)
    parser.add_argument("--openvino-model")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=40000, help="random ids are below this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--serve-openvino", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("--serve-ik", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve_ik:
        model, *limits = args.serve_ik
        return serve_ik(model, *map(int, limits))
    if args.serve_openvino:
        return serve_openvino(args.serve_openvino)
    args.batches = [int(batch) for batch in args.batches.split(",")]
    measure = contenders(args)
    results: dict[tuple[str, int], list[Rates]] = {}
    for number in range(args.rounds + 1):
        for batch in args.batches:
            for name, run in measure.items():
                result = run(batch)
                if number:  # the first round warms up
                    results.setdefault((name, batch), []).append(result)
    for batch in args.batches:
        print(f"batch {batch}: tokens/s, medians of {args.rounds}; in brackets what Octavo reaches times the peer")
        ours: list[float] = []
        for name in measure:
            medians = [statistics.median(column) for column in zip(*results[name, batch], strict=True)]
            ours = ours or medians
            prefill, decode = (f"{m:8.1f} ({o / m:4.2f}x)" for m, o in zip(medians, ours, strict=True))
            print(f"    {name:40} prefill {prefill}   decode {decode}", flush=True)
    return None


if __name__ == "__main__":
    main()
