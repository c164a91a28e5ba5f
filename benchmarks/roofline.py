#!/usr/bin/env python3
"""Every op of a forward and of sampling beside what the machine can do: GOP/s, GB/s, and the share of the nearer limit.

    python benchmarks/roofline.py [--seconds 0.2]

The limits (reading memory, float32 multiply-adds, products of bytes) are measured in the same run by
benchmarks/roofline_probe.c on all usable cores; it needs a C compiler and x86-64. Shapes are those of a model of half a
billion weights (hidden 896, 14 query and 2 key heads of 64, MLP of 4864). Each call takes the next of several copies
of its weights or cache, together over 100 MB, as a step does, so that they come from main memory. Best of many runs.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.loader.compact import BlockMatrix, HalfMatrix
from octavo.loader.gguf_types import TENSOR_TYPES
from octavo.ops.interface import AttentionMetadata
from octavo.ops.native import NativeOps
from octavo.ops.select import select_ops
from octavo.platforms.cpu import usable_cores

HIDDEN, MLP, HEADS, KV_HEADS, HEAD_DIM, BLOCK, VOCAB = 896, 4864, 14, 2, 64, 16, 49152
COLD_BYTES = 100_000_000
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Limits:
    """Of all cores together, in 10^9 a second."""

    read_bytes: float
    float_ops: float
    byte_ops: float


@dataclass(frozen=True)
class Case:
    """One op at one size. num_bytes: that must be read or written once; on_bytes: multiplies 8-bit numbers"""

    name: str
    num_ops: float
    num_bytes: float
    call: Callable[[], object]
    on_bytes: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.2, help="time for each figure")
    seconds = parser.parse_args().seconds
    ops = select_ops()
    assert isinstance(ops, NativeOps), "this measures the native ops"
    limits = measure_limits()
    print(
        f"{usable_cores()} cores read {limits.read_bytes:.0f} GB/s, do {limits.float_ops:.0f} GFLOP/s in float32 and "
        f"{limits.byte_ops:.0f} GOP/s on bytes"
    )
    print(f"{'op':36} {'us':>9} {'GOP/s':>7} {'GB/s':>6} {'of limit':>9}")
    for case in itertools.chain(linears(ops), row_ops(ops), attentions(ops), sampling(ops)):
        best = best_time_s(case.call, seconds)
        gops, gbs = case.num_ops / best / 1e9, case.num_bytes / best / 1e9
        share = max(gops / (limits.byte_ops if case.on_bytes else limits.float_ops), gbs / limits.read_bytes)
        print(f"{case.name:36} {1e6 * best:9.1f} {gops:7.1f} {gbs:6.1f} {share:9.0%}", flush=True)


# -- limits ------------------------------------------------------------------------------------------------------------


def measure_limits() -> Limits:
    """Build the probe and run it on every core at once."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/probe.so"
        source = Path(__file__).with_name("roofline_probe.c")
        subprocess.run(["cc", "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", library], check=True)
        probe = ctypes.CDLL(library)
    probe.multiply_add.restype = probe.dot_bytes.restype = ctypes.c_long
    cores = usable_cores()
    with ThreadPoolExecutor(cores) as threads:

        def rate(work: Callable[[int], float]) -> float:
            best = 0.0
            for _ in range(7):
                start = time.perf_counter()
                total = sum(threads.map(work, range(cores)))
                best = max(best, total / (time.perf_counter() - start) / 1e9)
            return best

        arrays = [np.ones(32_000_000, np.float32) for _ in range(cores)]
        scratch = [np.zeros(64, np.float32) for _ in range(cores)]

        def read(core: int) -> float:
            probe.read_floats(pointer(arrays[core]), ctypes.c_long(arrays[core].size), pointer(scratch[core]))
            return arrays[core].nbytes

        return Limits(
            rate(read),
            rate(lambda core: probe.multiply_add(ctypes.c_long(5_000_000), pointer(scratch[core]))),
            rate(lambda core: probe.dot_bytes(ctypes.c_long(5_000_000), pointer(scratch[core]))),
        )


def pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def best_time_s(call: Callable[[], object], seconds: float) -> float:
    call()
    best, runs, end = float("inf"), 0, time.perf_counter() + seconds
    while runs < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        runs += 1
    return best


def next_of(make: Callable[[], Any], size_bytes: int) -> Iterator[Any]:
    """Cycle through so many copies that the first has left every cache when its turn comes again."""
    return itertools.cycle([make() for _ in range(1 + COLD_BYTES // size_bytes)])


# -- ops ---------------------------------------------------------------------------------------------------------------


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape, dtype=np.float32)


def linears(ops: NativeOps) -> Iterator[Case]:
    """Yield gate and up projections in 4, 8 and 16 bits; operations are multiplications and additions."""
    kinds = {kind.name: kind for kind in TENSOR_TYPES.values()}
    num_out = 2 * MLP
    for name in ("Q4_0", "Q8_0", "float16"):
        if name == "float16":
            matrix: Any = HalfMatrix("float16", floats(num_out, HIDDEN).astype(np.float16).view(np.uint16))
            size = 2 * num_out * HIDDEN
        else:
            row_bytes = HIDDEN // kinds[name].block_size * kinds[name].block_bytes
            matrix = BlockMatrix(name, RNG.integers(0, 64, (num_out, row_bytes), dtype=np.uint8), HIDDEN)
            size = num_out * row_bytes
        weights = next_of(lambda matrix=matrix: ops.pack([matrix]), size)  # type: ignore[misc]
        for rows in (1, 8, 32, 512):
            x = floats(rows, HIDDEN)
            call = lambda x=x, weights=weights: ops.linear(x, next(weights))  # noqa: E731
            moved = size + 4 * rows * (HIDDEN + num_out)
            yield Case(f"linear {name}, {rows} rows", 2 * rows * HIDDEN * num_out, moved, call, name != "float16")


def row_ops(ops: NativeOps) -> Iterator[Case]:
    """Yield embedding, norms, activation and rotary embedding; they move more than they compute."""
    table = ops.pack([floats(VOCAB, HIDDEN)])
    weight = np.ones(HIDDEN, np.float32)
    cos_sin = floats(4096, HEAD_DIM)
    for rows in (32, 512):
        ids = RNG.integers(0, VOCAB, rows).astype(np.int32)
        x, y, gate_up = floats(rows, HIDDEN), floats(rows, HIDDEN), floats(rows, 2 * MLP)
        query, key = floats(rows, HEADS, HEAD_DIM), floats(rows, KV_HEADS, HEAD_DIM)
        cache = np.zeros((rows // BLOCK + 1, 2, KV_HEADS, BLOCK, HEAD_DIM), np.float16)
        positions = np.arange(rows, dtype=np.int32)
        slots = positions.astype(np.int64)

        def rope(q: Any = query, k: Any = key, p: Any = positions, c: Any = cache, s: Any = slots) -> object:
            return ops.rope_and_store(q, k, k, p, cos_sin, c, s)

        yield Case(f"embedding, {rows} rows", 0, 8 * x.size, lambda ids=ids: ops.embedding(ids, table))  # type: ignore[misc]
        yield Case(f"rms_norm, {rows} rows", 4 * x.size, 8 * x.size, lambda x=x: ops.rms_norm(x, weight, 1e-5))  # type: ignore[misc]
        yield Case(
            f"add_rms_norm, {rows} rows",
            5 * x.size,
            16 * x.size,
            lambda x=x, y=y: ops.add_rms_norm(x, y, weight, 1e-5),  # type: ignore[misc]
        )
        yield Case(
            f"act_and_mul, {rows} rows",
            10 * gate_up.size,
            6 * gate_up.size,
            lambda g=gate_up: ops.act_and_mul(g, "silu"),  # type: ignore[misc]
        )
        yield Case(f"rope_and_store, {rows} rows", 3 * (query.size + key.size), 8 * query.size + 12 * key.size, rope)


def attentions(ops: NativeOps) -> Iterator[Case]:
    """Yield decode and prefill over a float16 cache."""
    for rows, queries, keys in ((8, 1, 128), (32, 1, 128), (8, 1, 4096), (1, 512, 512), (1, 512, 4096)):
        blocks = -(-keys // BLOCK)
        shape = (rows * blocks, 2, KV_HEADS, BLOCK, HEAD_DIM)
        size = 2 * int(np.prod(shape))
        caches = next_of(lambda shape=shape: floats(*shape).astype(np.float16), size)  # type: ignore[misc]
        query = floats(rows * queries, HEADS, HEAD_DIM)
        metadata = AttentionMetadata(
            np.arange(0, rows * queries + 1, queries, dtype=np.int32),
            np.full(rows, keys, np.int32),
            np.arange(rows * blocks, dtype=np.int32).reshape(rows, blocks),
            np.zeros(rows * queries, np.int64),
        )
        pairs = rows * (queries * (keys - queries) + queries * (queries + 1) // 2)
        yield Case(
            f"paged_attention, {rows} x {queries} at {keys}",
            4 * pairs * HEADS * HEAD_DIM,
            size + 8 * query.size,
            lambda q=query, c=caches, m=metadata: ops.paged_attention(q, next(c), m, 0.125),  # type: ignore[misc]
        )


def sampling(ops: NativeOps) -> Iterator[Case]:
    """Yield the ops on logits, which a step has just written: they come from a cache where they fit."""
    rows = 32
    logits = 3 * floats(rows, VOCAB)
    ids = np.zeros(rows, np.int32)
    ones = np.ones(rows, np.float32)
    uniform = RNG.random(rows)

    def draw(top_k: Any, top_p: Any) -> object:
        return ops.sample(logits, ones, top_k, top_p, 0 * ones, uniform)

    size = logits.nbytes
    yield Case("argmax, 32 rows", 2 * logits.size, size, lambda: ops.argmax(logits))
    yield Case("sample, 32 rows", 12 * logits.size, size, lambda: draw(ids, ones))
    yield Case("sample top_k=50 top_p=0.9, 32 rows", 2 * logits.size, size, lambda: draw(ids + 50, 0.9 * ones))
    yield Case("top_logprobs k=5, 32 rows", 12 * logits.size, size, lambda: ops.top_logprobs(logits, ids, 5))
    yield Case("log_softmax, 32 rows", 13 * logits.size, 2 * size, lambda: ops.log_softmax(logits))


if __name__ == "__main__":
    main()
