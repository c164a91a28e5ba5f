#!/usr/bin/env python3
"""The engine's peak resident memory beside its budget: 1.3 times (weights + KV cache) + 80 MB.

    python benchmarks/peak_memory.py [--models smollm2-135m-instruct FILE.gguf] [--kv-cache-mb 64 512]

For each model and KV budget a fresh process loads the model and generates until every block of the cache has been
written. Weights are the file's bytes. benchmarks/random_gguf.py writes models of other shapes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

CHILD = """
import json, re, sys
from octavo import LLM, SamplingParams
model, kv_bytes = sys.argv[1], int(sys.argv[2])
options = dict(kv_cache_memory_bytes=kv_bytes, max_model_len=2048, max_num_seqs=32)
llm = LLM(model=model, skip_tokenizer_init=sys.argv[3] == "ids", **options)
core = llm.llm_engine.engine_core.engine_core
num_blocks = core.executor.worker.model_runner._plan.num_blocks
params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=sys.argv[3] != "ids")
num_prompts = num_blocks * 16 // 1000 + 2
prompts = [{"prompt_token_ids": [10 + i] + [20 + (i + j) % 90 for j in range(999)]} for i in range(num_prompts)]
llm.generate(prompts, params, use_tqdm=False)
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
print(json.dumps({"peak": peak, "blocks": num_blocks}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["smollm2-135m-instruct"])
    parser.add_argument("--kv-cache-mb", nargs="+", type=int, default=[64, 512])
    args = parser.parse_args()
    for model in args.models:
        weights = weights_bytes(model)
        for kv_mb in args.kv_cache_mb:
            kv_bytes = kv_mb * 10**6
            prompts = "ids" if Path(model).is_file() else "text"  # a random model has no tokenizer worth loading
            command = [sys.executable, "-c", CHILD, model, str(kv_bytes), prompts]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            answer = json.loads(output.strip().rpartition("\n")[2])
            budget = 1.3 * (weights + kv_bytes) + 80e6
            verdict = "within" if answer["peak"] <= budget else "OVER"
            print(
                f"{Path(model).name}: weights {weights / 1e6:.0f} MB, KV cache {kv_mb} MB ({answer['blocks']} blocks): "
                f"peak {answer['peak'] / 1e6:.0f} MB, {verdict} {budget / 1e6:.0f} MB",
                flush=True,
            )


def weights_bytes(model: str) -> int:
    """Return the size of the model's weight file, given by its path or by its name in the catalog."""
    from octavo.envs import cache_dir

    path = Path(model)
    if not path.exists():
        path = cache_dir() / "models" / model
    files = [path] if path.is_file() else [*path.glob("*.gguf"), *path.glob("*.safetensors")]
    return sum(file.stat().st_size for file in files)


if __name__ == "__main__":
    main()
