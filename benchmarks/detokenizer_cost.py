"""Cost of turning one generated token into text, ours beside the tokenizers library's DecodeStream.

    python benchmarks/detokenizer_cost.py [MODEL ...]

Prints microseconds of CPU time per token for English, for text whose characters are split between tokens, and for
random ids. "ours, 8 a push" is what a request costs whose tokens arrive 8 at a time (speculation).
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from tokenizers.decoders import DecodeStream

from octavo.loader.catalog import pull
from octavo.loader.gguf_file import GGUFFile
from octavo.tokenizers.gguf_vocab import load_gguf_tokenizer
from octavo.tokenizers.tokenizer import Tokenizer

ENGLISH = "The quick brown fox jumps over the lazy dog, and then it explains, at length, why it did so.\n" * 40
SPLIT = "Žluťoučký kůň 🤯👩‍👩‍👧‍👦 สวัสดีครับ 日本語テキスト हिन्दी 𓀀𓁐\n" * 40
NUM_REPEATS = 7


def main() -> None:
    for name in sys.argv[1:] or ["smollm2-135m-instruct", "gemma-3-270m"]:
        tokenizer = Tokenizer(load_gguf_tokenizer(GGUFFile(pull(name))))
        prompt = tokenizer.encode("Once upon a time")
        rng = random.Random(0)
        workloads = {
            "English": tokenizer.encode(ENGLISH, add_special_tokens=False),
            "split characters": tokenizer.encode(SPLIT, add_special_tokens=False),
            "random ids": [rng.randrange(len(tokenizer)) for _ in range(4000)],
        }
        for workload, ids in workloads.items():
            ours = best_us(partial(push, tokenizer, prompt, ids, 1), len(ids))
            grouped = best_us(partial(push, tokenizer, prompt, ids, 8), len(ids))
            theirs = best_us(partial(decode_stream, tokenizer, prompt, ids), len(ids))
            print(
                f"{name}, {workload}: ours {ours:.2f} us, ours, 8 a push {grouped:.2f} us, DecodeStream {theirs:.2f} us"
            )


def push(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int], num_per_push: int) -> None:
    detokenizer = tokenizer.detokenizer(prompt)
    for start in range(0, len(ids), num_per_push):
        detokenizer.push(ids[start : start + num_per_push])
    detokenizer.finish()


def decode_stream(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> None:
    stream = DecodeStream(ids=list(prompt), skip_special_tokens=True)
    for token_id in ids:
        try:
            stream.step(tokenizer.backend, token_id)
        except Exception:  # "invalid prefix": begin again, as vLLM does
            stream = DecodeStream(skip_special_tokens=True)


def best_us(run: Callable[[], None], num_tokens: int) -> float:
    """Return the best of several runs in microseconds of CPU time per token."""
    times = []
    for _ in range(NUM_REPEATS):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return min(times) / num_tokens * 1e6


if __name__ == "__main__":
    main()
