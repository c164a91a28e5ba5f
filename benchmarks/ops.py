"""Time the native ops beside NumPy and, if installed, PyTorch, on the shapes of SmolLM2-135M.

Usage: python benchmarks/ops.py [--threads N] [--isa NAME] [--seconds S]
Each figure is the best of many short runs, so that other work on the machine disturbs it little.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from octavo.platforms.cpu import usable_cores

LINEAR_SHAPES = [
    ("qkv", 576, 960),
    ("o", 576, 576),
    ("gate_up", 576, 3072),
    ("down", 1536, 576),
    ("lm_head", 576, 49152),
]
# GGUF types and shapes: of SmolLM2, and of a Qwen2-like model of 1.5 billion weights.
QUANTIZED_SHAPES = [
    ("gate_up", "Q4_1", 576, 3072),
    ("lm_head", "Q8_0", 576, 49152),
    ("1.5B gate_up", "Q4_0", 1536, 17920),
    ("1.5B gate_up", "Q4_K", 1536, 17920),
    ("1.5B down", "Q6_K", 8960, 1536),
]
TOKENS = [1, 8, 32, 128, 512]
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16
HIDDEN, INTERMEDIATE = 576, 1536

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One op at one size: what it computes and moves, and the contenders."""

    name: str
    num_flops: float
    num_bytes: float
    calls: dict[str, Call]


def main() -> None:
    """Print a table of microseconds, GFLOP/s and GB/s."""
    parser = argparse.ArgumentParser(description="Time the native ops beside NumPy and PyTorch.")
    parser.add_argument("--threads", type=int, default=None, help="threads for every contender (default: usable cores)")
    parser.add_argument("--isa", default=None, help="instruction set of the native ops")
    parser.add_argument("--only", default="", help="only families of ops whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each figure")
    options = parser.parse_args()
    num_threads = options.threads or usable_cores()
    # Before NumPy starts its BLAS threads.
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(num_threads)

    from octavo import _native

    _native.set_num_threads(num_threads)
    if options.isa:
        _native.set_isa(options.isa)
    torch = import_torch(num_threads)
    print(f"{_native.isa()}, {num_threads} threads, PyTorch {torch.__version__ if torch else 'not installed'}")
    families = {
        "linear": linear_cases,
        "quantised linear": quantized_cases,
        "rows": row_cases,
        "attention": attention_cases,
    }
    for family, cases in families.items():
        for case in cases(torch) if options.only in family else []:
            print_case(case, options.seconds)


def import_torch(num_threads: int) -> Any:
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(num_threads)
    torch.set_grad_enabled(False)
    return torch


def print_case(case: Case, seconds: float) -> None:
    parts = []
    for contender, call in case.calls.items():
        best = best_time_s(call, seconds)
        rates = f"{case.num_flops / best / 1e9:6.1f} GFLOP/s {case.num_bytes / best / 1e9:6.1f} GB/s"
        parts.append(f"{contender} {best * 1e6:10.1f} us {rates}")
    print(f"{case.name:24} | " + " | ".join(parts), flush=True)


def best_time_s(call: Call, seconds: float) -> float:
    call()
    best, runs, end = float("inf"), 0, time.perf_counter() + seconds
    while runs < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        runs += 1
    return best


def linear_cases(torch: Any) -> list[Case]:
    """Return linear at every shape and number of tokens; bytes are the weight's."""
    import numpy as np

    from octavo.ops.native import NativeOps

    ops, generator, cases = NativeOps(), np.random.default_rng(0), []
    for name, num_in, num_out in LINEAR_SHAPES:
        weight = generator.standard_normal((num_out, num_in), dtype=np.float32)
        packed = ops.pack([weight])
        for num_tokens in TOKENS if num_out < 10_000 else [1, 8, 32]:
            x = generator.standard_normal((num_tokens, num_in), dtype=np.float32)
            calls: dict[str, Call] = {
                "native": lambda x=x, packed=packed: ops.linear(x, packed),  # type: ignore[misc]
                "numpy": lambda x=x, weight=weight: x @ weight.T,  # type: ignore[misc]
            }
            if torch:
                a, b = torch.from_numpy(x), torch.from_numpy(weight)
                calls["torch"] = lambda a=a, b=b: torch.nn.functional.linear(a, b)  # type: ignore[misc]
            cases.append(Case(f"{name} T={num_tokens}", 2 * num_tokens * num_in * num_out, 4 * num_in * num_out, calls))
    return cases


def quantized_cases(torch: Any) -> list[Case]:
    """Return linear over GGUF blocks beside the float32 one; bytes are the file's.

    Rounding the activations is part of the time.
    """
    import numpy as np

    from octavo.loader.compact import BlockMatrix
    from octavo.loader.gguf_types import TENSOR_TYPES
    from octavo.ops.native import NativeOps

    ops, generator, cases = NativeOps(), np.random.default_rng(0), []
    types = {kind.name: kind for kind in TENSOR_TYPES.values()}
    for name, type_name, num_in, num_out in QUANTIZED_SHAPES:
        kind = types[type_name]
        blocks = generator.integers(0, 64, (num_out, num_in // kind.block_size * kind.block_bytes), dtype=np.uint8)
        weight = ops.pack([BlockMatrix(type_name, blocks, num_in)])
        size_bytes = blocks.size  # of the file; what is packed is at most 1.6 times that
        floats = ops.pack([generator.standard_normal((num_out, num_in), dtype=np.float32)])
        for num_tokens in TOKENS if num_out < 30_000 else [1, 8, 32]:
            x = generator.standard_normal((num_tokens, num_in), dtype=np.float32)
            calls: dict[str, Call] = {
                "native": lambda x=x, weight=weight: ops.linear(x, weight),  # type: ignore[misc]
                "native float32": lambda x=x, floats=floats: ops.linear(x, floats),  # type: ignore[misc]
            }
            num_flops = 2 * num_tokens * num_in * num_out
            cases.append(Case(f"{name} {type_name} T={num_tokens}", num_flops, size_bytes, calls))
    return cases


def row_cases(torch: Any) -> list[Case]:
    """Return the norm, activation and rotary ops; a few operations an element, hence bytes matter."""
    import numpy as np

    from octavo.ops.native import NativeOps
    from octavo.ops.reference import ReferenceOps

    ops, reference, generator, cases = NativeOps(), ReferenceOps(), np.random.default_rng(0), []
    weight = np.ones(HIDDEN, np.float32)
    for num_tokens in [1, 32, 512]:
        x = generator.standard_normal((num_tokens, HIDDEN), dtype=np.float32)
        gate_up = generator.standard_normal((num_tokens, 2 * INTERMEDIATE), dtype=np.float32)
        norm: dict[str, Call] = {
            "native": lambda x=x: ops.rms_norm(x, weight, 1e-5),  # type: ignore[misc]
            "numpy": lambda x=x: reference.rms_norm(x, weight, 1e-5),  # type: ignore[misc]
        }
        act: dict[str, Call] = {
            "native": lambda g=gate_up: ops.act_and_mul(g, "silu"),  # type: ignore[misc]
            "numpy": lambda g=gate_up: reference.act_and_mul(g, "silu"),  # type: ignore[misc]
        }
        if torch:
            a, w = torch.from_numpy(x), torch.from_numpy(weight)
            gate, up = torch.from_numpy(gate_up).chunk(2, -1)
            norm["torch"] = lambda a=a, w=w: torch.nn.functional.rms_norm(a, (HIDDEN,), w, 1e-5)  # type: ignore[misc]
            act["torch"] = lambda gate=gate, up=up: torch.nn.functional.silu(gate) * up  # type: ignore[misc]
        cases.append(Case(f"rms_norm T={num_tokens}", 4 * x.size, 8 * x.size, norm))
        cases.append(Case(f"silu_and_mul T={num_tokens}", 3 * gate_up.size, 6 * gate_up.size, act))
    return cases


def attention_cases(torch: Any) -> list[Case]:
    """Return decode at several batch sizes and prefill; PyTorch gets its keys contiguous, which no paged cache has."""
    import numpy as np

    from octavo.ops.interface import AttentionMetadata
    from octavo.ops.native import NativeOps
    from octavo.ops.reference import ReferenceOps

    ops, reference, generator, cases = NativeOps(), ReferenceOps(), np.random.default_rng(0), []
    for num_rows, num_queries, num_keys in [(1, 1, 256), (8, 1, 256), (32, 1, 256), (1, 1, 4096), (1, 512, 512)]:
        blocks = -(-num_keys // BLOCK_SIZE)
        shape = (num_rows * blocks, 2, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        cache = generator.standard_normal(shape, dtype=np.float32)
        num_tokens = num_rows * num_queries
        query = generator.standard_normal((num_tokens, HEADS, HEAD_DIM), dtype=np.float32)
        metadata = AttentionMetadata(
            np.arange(0, num_tokens + 1, num_queries, dtype=np.int32),
            np.full(num_rows, num_keys, np.int32),
            np.arange(num_rows * blocks, dtype=np.int32).reshape(num_rows, blocks),
            np.zeros(num_tokens, np.int64),
        )
        calls: dict[str, Call] = {
            "native": lambda q=query, c=cache, m=metadata: ops.paged_attention(q, c, m, 0.125),  # type: ignore[misc]
            "numpy": lambda q=query, c=cache, m=metadata: reference.paged_attention(q, c, m, 0.125),  # type: ignore[misc]
        }
        if torch:
            q = torch.randn(num_rows, HEADS, num_queries, HEAD_DIM)
            k, v = torch.randn(2, num_rows, KV_HEADS, num_keys, HEAD_DIM).unbind()
            calls["torch"] = lambda q=q, k=k, v=v, causal=num_queries > 1: (  # type: ignore[misc]
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
            )
        pairs = num_rows * (num_queries * (num_keys - num_queries) + num_queries * (num_queries + 1) / 2)
        name = f"attention {num_rows}x{num_queries} over {num_keys}"
        cases.append(Case(name, 4 * pairs * HEADS * HEAD_DIM, 8 * num_rows * num_keys * KV_HEADS * HEAD_DIM, calls))
    return cases


if __name__ == "__main__":
    main()
