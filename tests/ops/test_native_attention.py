"""Paged attention and the key/value store in C++ against the reference, and their bits however the work is split."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from octavo import _native
from octavo.ops import kv_layout
from octavo.ops.interface import AttentionMetadata, Ops
from octavo.ops.kv_layout import CacheSizes, DealtTokens
from octavo.ops.reference import ReferenceOps
from octavo.ops.tape import ForwardInputs, ModelFunctions, TapeLimits

Array = NDArray[np.float32]
REFERENCE = ReferenceOps()
DTYPES = ["float32", "float16", "int8"]


@dataclass(frozen=True)
class Step:
    """Rows as (queries, keys), on a cache whose unused places all hold NaN."""

    query: Array
    cache: Array
    metadata: AttentionMetadata


def unused_cache(sizes: CacheSizes, dtype: str) -> kv_layout.KVCache:
    """Return a cache in which every element that is read shows: NaN, by its scale where elements are codes."""
    shape = kv_layout.cache_shape(sizes, kv_layout.cache_dtype(dtype))
    if dtype != "int8":
        return np.full(shape, np.nan, kv_layout.cache_dtype(dtype))
    cache = np.full(shape, 99, np.int8)
    for plane in (0, 1):
        kv_layout.scales_of(cache, plane)[:] = np.nan
    return cache


def make_step(
    rows: list[tuple[int, int]],
    num_kv_heads: int = 2,
    group: int = 3,
    head_dim: int = 16,
    block_size: int = 16,
    window: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
) -> Step:
    generator = np.random.default_rng(seed)
    blocks_of = [-(-num_keys // block_size) for _, num_keys in rows]
    num_blocks = 1 + sum(blocks_of)
    cache = unused_cache(CacheSizes(num_blocks, num_kv_heads, block_size, head_dim), dtype)
    table = np.zeros((len(rows), max(blocks_of) + 1), np.int32)
    free = iter(generator.permutation(np.arange(1, num_blocks)))
    for row, (num_queries, num_keys) in enumerate(rows):
        table[row, : blocks_of[row]] = [next(free) for _ in range(blocks_of[row])]
        kv = generator.standard_normal((num_keys, 2, num_kv_heads, head_dim)).astype(np.float32)
        keys = np.arange(num_keys)
        kv_layout.store(cache, table[row, keys // block_size], keys % block_size, kv[:, 0], kv[:, 1])
        if window is not None:  # blocks out of the window were freed
            table[row, : max(0, num_keys - num_queries - window + 1) // block_size] = 0
    starts = np.concatenate([[0], np.cumsum([num_queries for num_queries, _ in rows])]).astype(np.int32)
    num_tokens = int(starts[-1])
    query = generator.standard_normal((num_tokens, num_kv_heads * group, head_dim)).astype(np.float32)
    lengths = np.array([num_keys for _, num_keys in rows], np.int32)
    return Step(query, cache, AttentionMetadata(starts, lengths, table, np.zeros(num_tokens, np.int64)))


def attend(ops: Ops, step: Step, window: int | None = None, softcap: float | None = None, per_head: str = "") -> Array:
    """per_head: "slopes", "sinks" or both in one string."""
    num_heads = step.query.shape[1]
    slopes = np.linspace(0.7, 0.01, num_heads, dtype=np.float32) if "slopes" in per_head else None
    sinks = np.linspace(-4, 8, num_heads, dtype=np.float32) if "sinks" in per_head else None
    return ops.paged_attention(step.query, step.cache, step.metadata, 0.25, window, softcap, slopes, sinks)


MIXED = [(1, 1), (1, 77), (5, 300), (64, 64), (0, 10), (13, 130), (1, 700)]


@pytest.mark.parametrize("window", [None, 1, 7, 64, 200])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_agrees_with_the_reference(native: Ops, window: int | None, softcap: float | None, dtype: str) -> None:
    for shape in [
        {"head_dim": 64, "num_kv_heads": 3},
        {"head_dim": 40, "block_size": 7, "group": 1},
        {"head_dim": 5, "block_size": 3, "num_kv_heads": 1, "group": 4},
        {"head_dim": 96, "block_size": 100, "num_kv_heads": 1},
        {"head_dim": 1, "block_size": 1, "group": 2},
    ]:
        step = make_step(MIXED, window=window, dtype=dtype, **shape)
        result = attend(native, step, window, softcap)
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, attend(REFERENCE, step, window, softcap), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slopes_and_sinks_agree_with_the_reference(native: Ops, dtype: str) -> None:
    generator = np.random.default_rng(7)
    for seed in range(12):
        window, softcap = [None, 1, 90][seed % 3], [None, 2.0][seed % 2]
        sizes = [int(generator.integers(1, limit)) for limit in (4, 5, 70, 40)]
        shape = dict(zip(("num_kv_heads", "group", "head_dim", "block_size"), sizes, strict=True))
        step = make_step(MIXED, window=window, dtype=dtype, seed=seed, **shape)
        plain = attend(REFERENCE, step, window, softcap)
        for per_head in ("slopes", "sinks", "slopes and sinks"):
            expected = attend(REFERENCE, step, window, softcap, per_head)
            assert not np.allclose(expected, plain, atol=1e-3) or (window == 1 and per_head == "slopes")
            result = attend(native, step, window, softcap, per_head)
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=3e-6, err_msg=f"{shape} {per_head}")


def test_a_sink_of_any_size(native: Ops) -> None:
    """One that outweighs every key leaves nothing; one of minus infinity is none."""
    step = make_step(MIXED)
    slopes, loud, silent = np.full(6, 1e4, np.float32), np.full(6, 1e4, np.float32), np.full(6, -np.inf, np.float32)
    for ops in (native, REFERENCE):
        assert not ops.paged_attention(step.query, step.cache, step.metadata, 0.25, sinks=loud).any()
        result = ops.paged_attention(step.query, step.cache, step.metadata, 0.25, sinks=silent)
        assert np.array_equal(result, attend(ops, step))
        # a slope that steep leaves the query's own key alone
        steep = ops.paged_attention(step.query, step.cache, step.metadata, 0.25, alibi_slopes=slopes)
        np.testing.assert_allclose(steep, attend(ops, step, window=1), rtol=1e-6)


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("block_size", "per_head"), [(16, ""), (24, ""), (16, "slopes and sinks")])
def test_bits_do_not_depend_on_chunks_neighbours_or_threads(
    native: Ops, window: int | None, dtype: str, block_size: int, per_head: str
) -> None:
    """One prompt of 600 tokens: whole, token by token, in chunks, alone or among others, with 1 to 3 threads."""
    whole = make_step([(600, 600)], head_dim=24, dtype=dtype, block_size=block_size)
    expected = attend(native, whole, window, per_head=per_head)
    crowd = make_step([(30, 90), (1, 5)], head_dim=24, seed=9, dtype=dtype, block_size=block_size)
    for begin, end in [(0, 1), (0, 7), (63, 64), (64, 65), (7, 23), (512, 513), (511, 530), (599, 600), (100, 600)]:
        part = replace(
            whole,
            query=whole.query[begin:end],
            metadata=AttentionMetadata(
                np.array([0, end - begin], np.int32),
                np.array([end], np.int32),
                whole.metadata.block_table,
                np.zeros(end - begin, np.int64),
            ),
        )
        for num_threads in (1, 2, 3):
            _native.set_num_threads(num_threads)
            alone = attend(native, part, window, per_head=per_head)
            among_others = attend(native, joined(crowd, part), window, per_head=per_head)
            assert np.array_equal(alone, expected[begin:end]) and np.array_equal(among_others[31:], expected[begin:end])


def joined(first: Step, second: Step) -> Step:
    """Return one step with the rows of both, the second's blocks behind the first's."""
    a, b = first.metadata, second.metadata
    width = max(a.block_table.shape[1], b.block_table.shape[1])
    tables = [np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in (a.block_table, b.block_table)]
    metadata = AttentionMetadata(
        np.concatenate([a.query_start, b.query_start[1:] + a.query_start[-1]]).astype(np.int32),
        np.concatenate([a.seq_lens, b.seq_lens]),
        np.concatenate([tables[0], tables[1] + np.int32(len(first.cache))]),
        np.concatenate([a.slot_mapping, b.slot_mapping]),
    )
    return Step(np.concatenate([first.query, second.query]), np.concatenate([first.cache, second.cache]), metadata)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_the_block_size(native: Ops, dtype: str) -> None:
    generator = np.random.default_rng(0)
    kv = generator.standard_normal((640, 2, 2, 16)).astype(np.float32)
    query = generator.standard_normal((40, 4, 16)).astype(np.float32)
    results = []
    for block_size in (1, 16, 20, 64, 640):
        cache = unused_cache(CacheSizes(640 // block_size, 2, block_size, 16), dtype)
        kv_layout.store(cache, np.arange(640) // block_size, np.arange(640) % block_size, kv[:, 0], kv[:, 1])
        table = np.arange(len(cache), dtype=np.int32)[None]
        starts, lengths = np.array([0, 40], np.int32), np.array([640], np.int32)
        metadata = AttentionMetadata(starts, lengths, table, np.zeros(40, np.int64))
        results.append(attend(native, Step(query, cache, metadata)))
    assert all(np.array_equal(result, results[0]) for result in results)


def test_scores_of_any_size_do_not_overflow(native: Ops) -> None:
    step = make_step([(3, 200)])
    loud = replace(step, query=step.query * 1e4)
    result = attend(native, loud)
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result, attend(REFERENCE, loud), rtol=1e-4, atol=1e-4)


def test_a_nan_stays_in_its_row(native: Ops) -> None:
    step = make_step([(2, 100), (3, 90)])
    clean = attend(native, step)
    kv_layout.keys_of(step.cache)[step.metadata.block_table[0, 0], :, 3] = np.nan
    result = attend(native, step)
    assert np.isnan(result[:2]).all() and np.array_equal(result[2:], clean[2:])


def test_the_tape_knows_slopes_and_sinks(native: Ops) -> None:
    step = make_step(MIXED)
    num_tokens, num_heads, head_dim = step.query.shape
    table = native.pack([step.query.reshape(num_tokens, -1)])

    def forward(ops: Ops, inputs: ForwardInputs) -> Array:
        flat = ops.embedding(inputs.token_ids, table)
        query = flat.reshape(flat.shape[0], num_heads, head_dim)
        attended = attend(ops, replace(step, query=query, metadata=inputs.metadata[0]), 90, per_head="slopes and sinks")
        return ops.take_rows(attended, inputs.output_rows)

    tape = native.capture(
        ModelFunctions(forward, lambda ops, x, slots: ops.scale(x, 1.0)), TapeLimits(99, 99, 99, 96, 1)
    )
    every = np.arange(num_tokens, dtype=np.int32)
    assert tape is not None
    replayed = tape.forward(ForwardInputs(every, every, every, [step.metadata]))
    assert np.array_equal(replayed, attend(native, step, 90, per_head="slopes and sinks"))


def test_strided_queries_and_caches(native: Ops) -> None:
    """Queries are a view into the fused projection; a layer's cache may be a view into a larger one."""
    step = make_step(MIXED)
    fused = np.random.default_rng(1).standard_normal((len(step.query), 10, 16)).astype(np.float32)
    fused[:, 2:8] = step.query
    layers = np.full((len(step.cache), 3, *step.cache.shape[1:]), np.nan, np.float32)
    layers[:, 1] = step.cache
    view = Step(fused[:, 2:8], layers[:, 1], step.metadata)
    assert np.array_equal(attend(native, view), attend(native, step))


def test_no_tokens(native: Ops) -> None:
    step = make_step([(0, 5)])
    assert attend(native, step).shape == (0, 6 * 16)


def random_heads(num_tokens: int, head_dim: int) -> tuple[Array, Array, Array]:
    """Return views of queries, keys and values of a fused projection, of many magnitudes."""
    generator = np.random.default_rng(0)
    fused = generator.standard_normal((num_tokens, 9, head_dim)).astype(np.float32)
    fused *= np.float32(10.0) ** generator.integers(-9, 5, (num_tokens, 9, 1)).astype(np.float32)
    return fused[:, :3], fused[:, 3:6], fused[:, 6:]


def assert_same_cache(cache: kv_layout.KVCache, expected: kv_layout.KVCache) -> None:
    """Codes may differ by one where a product fell between two, and scales by a rounding."""
    if cache.dtype != np.int8:
        assert np.array_equal(cache, expected, equal_nan=True)
        return
    for part in (kv_layout.keys_of, kv_layout.values_of):
        assert np.abs(part(cache).astype(int) - part(expected).astype(int)).max(initial=0) <= 1
    for plane in (0, 1):
        np.testing.assert_allclose(
            kv_layout.scales_of(cache, plane), kv_layout.scales_of(expected, plane), rtol=3e-7, atol=0
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("block_size", "head_dim"), [(16, 20), (7, 5), (16, 64)])
def test_store_kv_writes_its_slots_and_nothing_else(native: Ops, dtype: str, block_size: int, head_dim: int) -> None:
    generator = np.random.default_rng(0)
    for num_tokens in (0, 1, 50):
        _, key, value = random_heads(num_tokens, head_dim)
        cache = unused_cache(CacheSizes(8, 3, block_size, head_dim), dtype)
        expected = cache.copy()
        slots = generator.permutation(8 * block_size)[:num_tokens].astype(np.int64)
        native.store_kv(key, value, cache, slots)
        REFERENCE.store_kv(key, value, expected, slots)
        assert_same_cache(cache, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotary_dim", [20, 6])
def test_rope_and_store_are_rope_and_store_kv(native: Ops, dtype: str, rotary_dim: int) -> None:
    generator = np.random.default_rng(0)
    table = generator.standard_normal((40, rotary_dim)).astype(np.float32)
    for num_tokens in (0, 1, 50):
        query, key, value = random_heads(num_tokens, 20)
        positions = generator.integers(0, 40, num_tokens).astype(np.int32)
        slots = generator.permutation(8 * 16)[:num_tokens].astype(np.int64)
        cache = unused_cache(CacheSizes(8, 3, 16, 20), dtype)
        expected, reference = cache.copy(), cache.copy()
        rotated = native.rope_and_store(query, key, value, positions, table, cache, slots)
        native.store_kv(native.rope(key, positions, table), value, expected, slots)
        assert np.array_equal(cache, expected, equal_nan=True)
        assert np.array_equal(rotated, native.rope(query, positions, table))
        close = REFERENCE.rope_and_store(query, key, value, positions, table, reference, slots)
        np.testing.assert_allclose(rotated, close, rtol=1e-5, atol=1e-5 * np.abs(query).max(initial=0))


@pytest.mark.parametrize("ops_of", ["native", "reference"])
def test_what_a_cache_cannot_hold(native: Ops, ops_of: str) -> None:
    """float16 is limited to its largest number; a number that is none stays none, in its own token and head."""
    ops = native if ops_of == "native" else REFERENCE
    x = np.ones((3, 1, 8), np.float32)
    x[0, 0, :2] = 1e6, -1e6
    x[1, 0, 3] = np.nan
    slots = np.arange(16, 19, dtype=np.int64)
    half = np.zeros((2, 2, 1, 16, 8), np.float16)
    ops.store_kv(x, x, half, slots)
    for stored in (kv_layout.keys_of(half)[1, 0], kv_layout.values_of(half)[1, 0]):
        assert stored[0, 0] == 65504 and stored[0, 1] == -65504 and np.isnan(stored[1, 3])
        assert (stored[2] == 1).all() and np.isfinite(stored[1, 4:]).all()
    x[0, 0, 0] = np.inf
    x[2] = 0
    codes = np.zeros((2, 2, 1, 16, 12), np.int8)
    ops.store_kv(x, x, codes, slots)
    for plane in (0, 1):
        scales = kv_layout.scales_of(codes, plane)[1, 0]
        assert np.isnan(scales[:2]).all() and scales[2] == 0


def test_int8_is_near_what_was_stored(native: Ops) -> None:
    _, key, value = random_heads(48, 64)
    cache = np.zeros((4, 2, 3, 16, 68), np.int8)
    native.store_kv(key, value, cache, np.arange(16, 64, dtype=np.int64))
    for stored, x in zip(kv_layout.gather(cache, np.arange(1, 4)), (key, value), strict=True):
        error = np.abs(stored.swapaxes(0, 1) - x).max(axis=-1)
        assert (error <= np.abs(x).max(axis=-1) / 250).all()


def test_bad_attention_arguments_are_refused(native: Ops) -> None:
    step = make_step([(2, 40), (1, 20)])
    metadata = step.metadata

    def refuse(message: str, **changes: object) -> None:
        fields = {name: changes.pop(name) for name in list(changes) if hasattr(metadata, name)}
        bad = replace(step, metadata=replace(metadata, **fields), **changes)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=message):
            attend(native, bad)

    table = metadata.block_table.copy()
    for bad in (-1, len(step.cache)):
        table[0, 1] = bad
        refuse(f"block_table must lie in 0.*got {bad} in row 0", block_table=table)
    refuse("seq_lens must lie between", seq_lens=np.array([1, 20], np.int32))
    refuse("seq_lens must lie between", seq_lens=np.array([40, 1000], np.int32))
    refuse("seq_lens must lie between", seq_lens=np.array([40, -3], np.int32))
    refuse("query_start must rise from 0 to 3", query_start=np.array([0, 2, 4], np.int32))
    refuse("query_start must rise from 0 to 3", query_start=np.array([1, 2, 3], np.int32))
    refuse("query_start must not fall", query_start=np.array([0, 4, 3], np.int32))
    refuse(r"query_start must be a int32 array \[3\]", query_start=np.array([0, 3], np.int32))
    refuse(r"block_table must be a int32 array \[2, \*\]", block_table=table[:1])
    refuse("got int64", seq_lens=metadata.seq_lens.astype(np.int64))
    refuse("query must have a multiple of 2 heads, got 5", query=step.query[:, :5])
    refuse(r"query must be a float32 array \[\*, \*, 16\]", query=np.zeros((3, 6, 8), np.float32))
    refuse(r"cache must be a float32, float16 or int8 array \[\*, 2,", cache=np.zeros((9, 1, 2, 16, 16), np.float32))
    with pytest.raises(ValueError, match="sliding_window must be at least 1"):
        attend(native, step, window=0)
    with pytest.raises(ValueError, match="softcap must be positive"):
        attend(native, step, softcap=0.0)
    for name in ("alibi_slopes", "sinks"):
        for wrong in (np.ones(5, np.float32), np.ones(6), np.ones((6, 1), np.float32)):
            with pytest.raises(ValueError, match=rf"{name} must be a float32 array \[6\]"):
                native.paged_attention(step.query, step.cache, metadata, 0.25, **{name: wrong})


def test_bad_store_kv_arguments_are_refused(native: Ops) -> None:
    cache = np.zeros((4, 2, 3, 16, 20), np.float32)
    key = np.zeros((2, 3, 20), np.float32)
    for bad in (-1, 64):
        with pytest.raises(ValueError, match=f"slot_mapping must lie in 0..63, got {bad}"):
            native.store_kv(key, key, cache, np.array([0, bad], np.int64))
    with pytest.raises(ValueError, match="slot_mapping must be a int64"):
        native.store_kv(key, key, cache, np.array([0, 1], np.int32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"value must be a float32 array \[2, 3, 20\]"):
        native.store_kv(key, key[:1], cache, np.array([0, 1], np.int64))
    cache.flags.writeable = False
    with pytest.raises(ValueError, match="cache must be writable"):
        native.store_kv(key, key, cache, np.array([0, 1], np.int64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_query_heads_may_be_divided_unevenly_among_keys(native: Ops, dtype: str) -> None:
    step = make_step(MIXED, num_kv_heads=3, group=3, dtype=dtype)
    whole = attend(native, step)
    kept = {
        "first": ([3, 2], range(5), [0, 1]),
        "last": ([1, 3], range(5, 9), [1, 2]),
        "all": ([3, 3, 3], range(9), [0, 1, 2]),
    }
    for counts, heads, kv_heads in kept.values():
        query = step.query[:, heads.start : heads.stop]
        cache = np.ascontiguousarray(step.cache[:, :, kv_heads])
        out = native.paged_attention(query, cache, step.metadata, 0.25, heads_of_kv=counts)
        np.testing.assert_array_equal(out, whole[:, heads.start * 16 : heads.stop * 16])
        reference = REFERENCE.paged_attention(query, cache, step.metadata, 0.25, heads_of_kv=counts)
        np.testing.assert_allclose(reference, out, rtol=1e-5, atol=3e-6)
    for ops in (native, REFERENCE):
        for wrong in ([3, 2], [9], [10, -1, 0], [3, 3, 2], [6, 3, 0]):
            with pytest.raises(ValueError, match="heads_of_kv"):
                ops.paged_attention(step.query, step.cache, step.metadata, 0.25, heads_of_kv=wrong)


def deal(step: Step, dealt: DealtTokens) -> Step:
    """Return the step with a cache that has only one part's tokens; places of others hold what must not be read."""
    sizes = kv_layout.cache_sizes(step.cache)
    cache = unused_cache(sizes, step.cache.dtype.name)
    table = step.metadata.block_table
    for row, num_keys in enumerate(step.metadata.seq_lens.tolist()):
        from_keys = np.flatnonzero(dealt.has(np.arange(num_keys)))
        to_keys = np.arange(len(from_keys))
        size = sizes.block_size
        for elements in (kv_layout.keys_of, kv_layout.values_of):
            found = elements(step.cache)[table[row, from_keys // size], :, from_keys % size]
            elements(cache)[table[row, to_keys // size], :, to_keys % size] = found
        if step.cache.dtype == np.int8:
            for plane in (0, 1):
                scales = kv_layout.scales_of(step.cache, plane)[table[row, from_keys // size], :, from_keys % size]
                kv_layout.scales_of(cache, plane)[table[row, to_keys // size], :, to_keys % size] = scales
    return replace(step, cache=cache)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_parts", "run", "block_size"), [(2, 1, 16), (3, 1, 7), (2, 8, 16), (4, 16, 16), (5, 3, 3)]
)
def test_parts_of_the_tokens_together_are_all_of_them(
    native: Ops, num_parts: int, run: int, block_size: int, dtype: str
) -> None:
    step = make_step([(1, 1), *MIXED, (1, 1500), (40, 1300)], block_size=block_size, dtype=dtype, head_dim=24)
    expected = attend(REFERENCE, step).reshape(len(step.query), 6, 24)
    all_dealt = [DealtTokens(part, num_parts, run) for part in range(num_parts)]
    for ops in (native, REFERENCE):
        own = [ops.partial_attention(s.query, s.cache, s.metadata, 0.25, d) for d in all_dealt for s in [deal(step, d)]]
        parts = np.concatenate(own, axis=1)
        for heads in (range(6), range(2, 5)):
            merged = ops.merge_attention(parts, num_parts, 6, heads).reshape(len(step.query), len(heads), 24)
            np.testing.assert_allclose(merged, expected[:, heads.start : heads.stop], rtol=2e-5, atol=5e-6)


def test_a_part_of_the_tokens_does_not_depend_on_chunks_and_neighbours(native: Ops) -> None:
    step = make_step([(1, 900), (60, 700), (3, 64)])
    dealt = DealtTokens(1, 2, 4)
    dealt_step = deal(step, dealt)
    whole = native.partial_attention(step.query, dealt_step.cache, step.metadata, 0.25, dealt)
    for token in (0, 1, 30, 60, 63):
        row = 0 if token == 0 else 1 if token <= 60 else 2
        position = step.metadata.seq_lens[row] - (step.metadata.query_start[row + 1] - token)
        alone = AttentionMetadata(
            np.array([0, 1], np.int32),
            np.array([position + 1], np.int32),
            step.metadata.block_table[row : row + 1],
            np.zeros(1, np.int64),
        )
        one = native.partial_attention(step.query[token : token + 1], dealt_step.cache, alone, 0.25, dealt)
        np.testing.assert_array_equal(one[0], whole[token])


def test_parts_that_are_none_are_refused(native: Ops) -> None:
    step = make_step([(1, 40)])
    for wrong in (DealtTokens(2, 2, 1), DealtTokens(-1, 2, 1), DealtTokens(0, 2, 0)):
        with pytest.raises(ValueError, match="part"):
            native.partial_attention(step.query, step.cache, step.metadata, 0.25, wrong)
    # 200 tokens in two parts need seven blocks of 16, and the row has four
    metadata = replace(step.metadata, seq_lens=np.array([200], np.int32))
    for ops in (native, REFERENCE):
        with pytest.raises(ValueError, match="seq_lens"):
            ops.partial_attention(step.query, step.cache, metadata, 0.25, DealtTokens(0, 2, 1))
    parts = np.zeros((3, 2 * 6 * 18), np.float32)
    with pytest.raises(ValueError, match="parts"):
        native.merge_attention(parts[:, :-1], 2, 6, range(6))
    with pytest.raises(ValueError, match="parts"):
        native.merge_attention(parts, 2, 6, range(2, 7))
