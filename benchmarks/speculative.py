#!/usr/bin/env python3
"""Decode rates with and without guesses, on work that repeats its prompt, on random text, alone and in a batch.

usage: speculative.py [--model NAME] [--method ngram|suffix] [--rounds 3] [--tasks edit,summary,random,batch]

Two engines, measured in turn. `edit`: code is copied with changes; `summary`: a text is answered with quotes (both with
the answer forced by the chat's beginning, since small models answer otherwise than asked); `random`: temperature 1, so
that nothing repeats; `batch`: 32 requests of `random`. Rates are output tokens a second after the first token, the best
of the rounds; the last column is the ratio, which must be 1.8 for the first two and at least 0.98 for the others.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from octavo import LLM, SamplingParams

CODE = (Path(__file__).parent.parent / "octavo" / "scheduler" / "stop.py").read_text(encoding="utf-8")[:1500]
TEXT = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")[2600:4400]
OPTIONS = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 16, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
}


def tasks() -> dict[str, tuple[list[str], SamplingParams]]:
    greedy = SamplingParams(temperature=0, max_tokens=250, ignore_eos=True)
    chance = SamplingParams(temperature=1, seed=7, max_tokens=150, ignore_eos=True)
    edit = f"Code:\n{CODE}\n\nThe same code with request renamed to sequence:\n{CODE[:200]}"
    summary = f"Text:\n{TEXT}\n\nSummary, sentence by sentence, with quotes:\n\n> {TEXT[:150]}"
    return {
        "edit": ([edit], greedy),
        "summary": ([summary], greedy),
        "random": (["Random words:"], chance),
        "batch": ([f"Random words, list {number}:" for number in range(32)], chance),
    }


def decode_rate(llm: LLM, prompts: list[str], params: SamplingParams) -> tuple[float, list[list[int]]]:
    """Return output tokens a second, without the prompts' time, and the tokens."""
    llm.reset_prefix_cache()
    llm.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)  # the prompts are in the cache now
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    return sum(map(len, tokens)) / seconds, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--method", default="ngram", choices=OPTIONS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", default="edit,summary,random,batch")
    args = parser.parse_args()
    plain = LLM(args.model, max_num_seqs=32, kv_cache_memory_bytes=2**28)
    guessing = LLM(args.model, max_num_seqs=32, kv_cache_memory_bytes=2**28, speculative_config=OPTIONS[args.method])
    print(f"{args.model}, {args.method}: task, tokens/s without, with, ratio")
    for name, (prompts, params) in tasks().items():
        if name not in args.tasks.split(","):
            continue
        best = [0.0, 0.0]
        for _ in range(args.rounds):
            (rate, expected), (guessed_rate, got) = (decode_rate(llm, prompts, params) for llm in (plain, guessing))
            assert got == expected, "guesses changed a result"
            best = [max(best[0], rate), max(best[1], guessed_rate)]
        print(f"{name:8} {best[0]:8.1f} {best[1]:8.1f} {best[1] / best[0]:6.2f}", flush=True)


if __name__ == "__main__":
    main()
