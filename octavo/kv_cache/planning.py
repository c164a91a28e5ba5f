"""The memory plan: layers -> groups -> tensors -> number of blocks, from an explicit byte budget.

Groups are made so that every block of the pool can serve any group: layers of different groups share tensors, and
their pages (one block's keys and values of one layer) have one size in bytes. With Gemma 3's 3 full and 15 sliding
layers that is one full group, five sliding groups, three tensors, and six layers behind each tensor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from octavo.config.configs import CacheConfig
from octavo.errors import ConfigError
from octavo.kv_cache.managers import num_peak_blocks
from octavo.types.kv_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)

# Make groups of the largest kind's size if the smallest kind has nearly as many layers: a few unused pages cost less
# than cutting every kind into many groups, each with a block table of its own.
NEARLY_EQUAL = 1.25
UNBOUNDED_TOKENS = 2**40  # longer than any sequence


def plan_kv_cache(
    specs: Mapping[str, KVCacheSpec],
    memory_bytes: int,
    cache_config: CacheConfig,
    max_model_len: int,
    max_step_tokens: int,
    all_specs: Mapping[str, KVCacheSpec] | None = None,
) -> KVCacheConfig:
    """Plan the KV cache of one worker whose layers store `specs` (layer name -> spec, in layer order).

    max_step_tokens: tokens that one step adds to a sequence (max_num_batched_tokens + lookahead); bounds what a
        sliding window holds
    all_specs: layers of all workers, where others have other layers: groups are the same everywhere
    A model without a cache (an encoder) gets no groups, and nothing but the null block.
    Raises ConfigError if one sequence of max_model_len tokens does not fit, unless num_blocks_override is set.
    """
    if not specs:
        return KVCacheConfig(num_blocks=1, tensors=(), groups=())
    layout = _lay_out(specs, cache_config, max_model_len, all_specs)
    num_blocks = cache_config.num_blocks_override
    if num_blocks is None:
        num_blocks = memory_bytes // layout.bytes_per_block
        needed = 1 + _blocks_per_sequence(layout.groups, max_model_len, max_step_tokens)
        if num_blocks < needed:
            longest = fit_max_model_len(specs, memory_bytes, cache_config, max_model_len, max_step_tokens, all_specs)
            raise ConfigError(
                f"One sequence of max_model_len={max_model_len} tokens needs {needed * layout.bytes_per_block:,} bytes "
                f"of KV cache, but only {memory_bytes:,} bytes are available. Lower max_model_len "
                f"(at most {longest} fits) or raise the KV cache memory."
            )
    elif num_blocks < 2:
        raise ConfigError(f"num_blocks_override={num_blocks}: at least 2 blocks are needed, one of them is reserved")
    tensors = tuple(KVCacheTensor(page_bytes * num_blocks, layers) for page_bytes, layers in layout.tensors)
    return KVCacheConfig(num_blocks=num_blocks, tensors=tensors, groups=layout.groups)


def fit_max_model_len(
    specs: Mapping[str, KVCacheSpec],
    memory_bytes: int,
    cache_config: CacheConfig,
    max_model_len: int,
    max_step_tokens: int,
    all_specs: Mapping[str, KVCacheSpec] | None = None,
) -> int:
    """Return the longest length up to max_model_len of which one sequence fits into memory_bytes; 0 if none does."""
    if not specs:
        return max_model_len

    def fits(length: int) -> bool:
        layout = _lay_out(specs, cache_config, length, all_specs)
        available = cache_config.num_blocks_override or memory_bytes // layout.bytes_per_block
        return 1 + _blocks_per_sequence(layout.groups, length, max_step_tokens) <= available

    return _longest(fits, max_model_len + 1)


def max_request_tokens(config: KVCacheConfig, max_step_tokens: int) -> int:
    """Return the length of the longest sequence that the planned cache can hold alone.

    The input side refuses prompts that are not shorter; the scheduler ends sequences there.
    """
    if not config.groups:
        return UNBOUNDED_TOKENS
    usable = config.num_blocks - 1

    def fits(length: int) -> bool:
        return _blocks_per_sequence(config.groups, length, max_step_tokens) <= usable

    too_long = usable * max(group.spec.block_size for group in config.groups) + 1
    # with nothing but sliding windows no length is too long
    return _longest(fits, UNBOUNDED_TOKENS if fits(too_long) else too_long)


def unify_plans(plans: Sequence[KVCacheConfig]) -> list[KVCacheConfig]:
    """Cut every worker's plan to the smallest number of blocks: a block id must mean something everywhere.

    Raises ConfigError if the workers' groups differ: then one block table does not serve all.
    """
    kinds = [tuple(group.spec.block_size for group in plan.groups) for plan in plans]
    if any(kind != kinds[0] for kind in kinds):
        raise ConfigError(f"Workers must agree on KV cache groups; their block sizes by group are {kinds}")
    num_blocks = min(plan.num_blocks for plan in plans)
    return [
        replace(
            plan,
            num_blocks=num_blocks,
            tensors=tuple(
                replace(tensor, size_bytes=tensor.size_bytes // plan.num_blocks * num_blocks) for tensor in plan.tensors
            ),
        )
        for plan in plans
    ]


@dataclass(frozen=True)
class _Layout:
    """Groups, and tensors as (bytes per block, layers that share it)."""

    groups: tuple[KVCacheGroupSpec, ...]
    tensors: tuple[tuple[int, tuple[str, ...]], ...]

    @property
    def bytes_per_block(self) -> int:
        return sum(page_bytes for page_bytes, _ in self.tensors)


def _lay_out(
    specs: Mapping[str, KVCacheSpec],
    cache_config: CacheConfig,
    max_model_len: int,
    all_specs: Mapping[str, KVCacheSpec] | None = None,
) -> _Layout:
    if all_specs is not None and all_specs.keys() != specs.keys():
        return _own_part(_lay_out(all_specs, cache_config, max_model_len), specs)
    stored = {name: _as_stored(spec, cache_config, max_model_len) for name, spec in specs.items()}
    unified = _unify_page_sizes(stored)
    if unified is None:
        return _lay_out_unshared(stored)
    layers_by_spec = _layers_by_spec(unified)
    group_size = _group_size([len(layers) for layers in layers_by_spec.values()])
    groups = []
    for spec, layers in layers_by_spec.items():
        num_groups = -(-len(layers) // group_size)
        # Strided, so that neighbouring layers go to different groups and pipeline stages cut all groups alike.
        groups += [KVCacheGroupSpec(tuple(layers[i::num_groups]), spec) for i in range(num_groups)]
    return _share_tensors(groups)


def _share_tensors(groups: Sequence[KVCacheGroupSpec]) -> _Layout:
    """Let the layers at one place of each group share a tensor."""
    page_bytes = max(group.spec.page_size_bytes for group in groups if group.layer_names)
    num_tensors = max(len(group.layer_names) for group in groups)
    tensors = tuple(
        (page_bytes, tuple(group.layer_names[i] for group in groups if i < len(group.layer_names)))
        for i in range(num_tensors)
    )
    return _Layout(tuple(groups), tensors)


def _own_part(layout: _Layout, specs: Mapping[str, KVCacheSpec]) -> _Layout:
    """Return the layout of a worker that has some of the layers, perhaps with heads of its own. Groups may be empty."""
    groups = []
    for group in layout.groups:
        names = tuple(name for name in group.layer_names if name in specs)
        num_kv_heads = specs[names[0]].num_kv_heads if names else group.spec.num_kv_heads
        groups.append(KVCacheGroupSpec(names, msgspec.structs.replace(group.spec, num_kv_heads=num_kv_heads)))
    if len({group.spec.page_size_bytes for group in groups if group.layer_names}) == 1:
        return _share_tensors(groups)
    unshared = [(group.spec.page_size_bytes, (name,)) for group in groups for name in group.layer_names]
    return _Layout(tuple(groups), tuple(unshared))


def _as_stored(spec: KVCacheSpec, cache_config: CacheConfig, max_model_len: int) -> KVCacheSpec:
    """Return how a layer is stored: a window that never leaves anything behind is stored like full attention."""
    if not isinstance(spec, SlidingWindowSpec):
        return spec
    if cache_config.enable_hybrid and spec.sliding_window < max_model_len:
        return spec
    return FullAttentionSpec(spec.block_size, spec.num_kv_heads, spec.head_dim, spec.dtype)


def _unify_page_sizes(specs: Mapping[str, KVCacheSpec]) -> dict[str, KVCacheSpec] | None:
    """Enlarge the blocks of layers with small pages until all pages are equal; None if the sizes do not divide."""
    largest = max(spec.page_size_bytes for spec in specs.values())
    if any(largest % spec.page_size_bytes for spec in specs.values()):
        return None
    return {
        name: msgspec.structs.replace(spec, block_size=spec.block_size * (largest // spec.page_size_bytes))
        for name, spec in specs.items()
    }


def _lay_out_unshared(specs: Mapping[str, KVCacheSpec]) -> _Layout:
    """One group per spec and one tensor per layer: right for any page sizes, but a block serves only its own group."""
    groups = tuple(KVCacheGroupSpec(tuple(layers), spec) for spec, layers in _layers_by_spec(specs).items())
    return _Layout(groups, tuple((spec.page_size_bytes, (name,)) for name, spec in specs.items()))


def _layers_by_spec(specs: Mapping[str, KVCacheSpec]) -> dict[KVCacheSpec, list[str]]:
    layers_by_spec: dict[KVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        layers_by_spec.setdefault(spec, []).append(name)
    return layers_by_spec


def _group_size(num_layers_by_kind: Sequence[int]) -> int:
    smallest, largest = min(num_layers_by_kind), max(num_layers_by_kind)
    return largest if largest < smallest * NEARLY_EQUAL else smallest


def _longest(fits: Callable[[int], bool], too_long: int) -> int:
    """Return the greatest length below too_long that fits, as all below it do; 0 if none does."""
    return bisect_left(range(1, too_long), True, key=lambda length: not fits(length))


def _blocks_per_sequence(groups: Sequence[KVCacheGroupSpec], num_tokens: int, max_step_tokens: int) -> int:
    return sum(num_peak_blocks(group.spec, num_tokens, max_step_tokens) for group in groups)
