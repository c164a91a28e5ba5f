#!/usr/bin/env python3
"""Throughput with eight LoRA adapters mixed in a batch, beside an engine without LoRA.

usage: lora.py [--model NAME] [--rank 16] [--batches 8,32] [--rounds 2] [--projections all|qv]
               [--dtype bfloat16|float16|float32]

Two engines, measured in turn: one without LoRA, and one with eight random adapters, of which requests use one each in
turn (`mixed`) or none (`none`). Rates are output tokens a second, the best of the rounds. `mixed` should
be 0.8 of the first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from octavo import LLM, SamplingParams
from octavo.lora.request import LoRARequest

NUM_ADAPTERS = 8
PARAMS = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)


def module_shapes(worker: Any) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of a Llama-like model's projections."""
    shapes = {}
    for index, layer in enumerate(worker.get_model().layers):
        attention, mlp = layer.attention, layer.mlp
        inner, hidden = mlp.down.linear.weight.in_features, mlp.down.linear.weight.out_features
        queries = attention.output.linear.weight.in_features
        keys = (attention.qkv.linear.weight.out_features - queries) // 2
        projections = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes.update({f"model.layers.{index}.{name}": shape for name, shape in projections.items()})
    return shapes


def write_adapter(folder: Path, shapes: dict[str, tuple[int, int]], rank: int, seed: int, dtype: str) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (outputs, inputs) in shapes.items():
        for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            values = 0.02 * torch.randn(shape, generator=generator)
            tensors[f"base_model.model.{name}.lora_{side}.weight"] = values.to(getattr(torch, dtype))
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return folder


def rate(llm: LLM, batch: int, loras: Sequence[LoRARequest | None]) -> float:
    """Return output tokens a second."""
    prompts = [f"Write about number {number}:" for number in range(batch)]
    begin = time.perf_counter()
    llm.generate(prompts, PARAMS, use_tqdm=False, lora_request=[loras[i % len(loras)] for i in range(batch)])
    return batch * (PARAMS.max_tokens or 0) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batches", default="8,32")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--projections", default="all", choices=("all", "qv"))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"), help="of the files")
    args = parser.parse_args()
    options: dict[str, Any] = {"max_num_seqs": 32, "max_model_len": 1024, "kv_cache_memory_bytes": 2**28}
    plain = LLM(args.model, **options)
    adapted = LLM(args.model, enable_lora=True, max_loras=NUM_ADAPTERS, max_lora_rank=args.rank, **options)
    shapes = adapted.collective_rpc(module_shapes)[0]
    if args.projections == "qv":
        shapes = {name: shape for name, shape in shapes.items() if name.endswith(("q_proj", "v_proj"))}
    with tempfile.TemporaryDirectory() as folder:
        loras = [
            LoRARequest(f"a{i}", i + 1, str(write_adapter(Path(folder) / str(i), shapes, args.rank, i, args.dtype)))
            for i in range(NUM_ADAPTERS)
        ]
        rate(adapted, NUM_ADAPTERS, loras)
        print(f"{'batch':>5} {'plain':>8} {'none':>8} {'mixed':>8}  none/plain mixed/plain")
        for batch in map(int, args.batches.split(",")):
            runs = [
                (rate(plain, batch, [None]), rate(adapted, batch, [None]), rate(adapted, batch, loras))
                for _ in range(args.rounds)
            ]
            best, none, mixed = (max(column) for column in zip(*runs, strict=True))
            print(
                f"{batch:5} {best:8.0f} {none:8.0f} {mixed:8.0f}  {none / best:10.2f} {mixed / best:11.2f}", flush=True
            )


if __name__ == "__main__":
    main()
