#!/usr/bin/env python3
"""Prefill and decode rates of Octavo beside Transformers in float32: same weights, same work, same run, interleaved.

usage: versus_transformers.py [--model smollm2-135m-instruct] [--batches 1,8,32] [--rounds 3] [--threads 2]

Each round runs both engines once per batch size; the medians and their ratio are printed, one line a batch size.
Prefill comes from a run that generates one token, decode from the difference to the run that generates them all.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable

from versus_peers import Octavo, random_prompts, rates

Generate = Callable[[list[list[int]], int], None]


def transformers_generate(model: str, threads: int) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    from octavo.loader.catalog import pull

    torch.set_num_threads(threads)
    gguf = pull(model)
    reference = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()

    def generate(prompts: list[list[int]], num_tokens: int) -> None:
        with torch.inference_mode():
            reference.generate(
                torch.tensor(prompts), max_new_tokens=num_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
            )

    return generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    max_len = args.input_len + args.output_len + 16
    octavo = Octavo(args.model, max(map(int, args.batches.split(","))), max_len, {})
    engines = {"octavo": octavo.generate, "transformers": transformers_generate(args.model, args.threads)}
    for batch in map(int, args.batches.split(",")):
        prompts = random_prompts(batch, args.input_len, 40000)
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
        for generate in engines.values():
            generate(prompts[:1], 4)
        for _ in range(args.rounds):
            for name, generate in engines.items():
                measured[name].append(rates(generate, prompts, args.output_len))
        medians = {n: [statistics.median(column) for column in zip(*rows, strict=True)] for n, rows in measured.items()}
        ours, theirs = medians["octavo"], medians["transformers"]
        print(
            f"batch {batch:3d}: prefill {ours[0]:7.1f} / {theirs[0]:7.1f} tok/s = {ours[0] / theirs[0]:.2f}x   "
            f"decode {ours[1]:7.1f} / {theirs[1]:7.1f} tok/s = {ours[1] / theirs[1]:.2f}x   (octavo / transformers)",
            flush=True,
        )


if __name__ == "__main__":
    main()
