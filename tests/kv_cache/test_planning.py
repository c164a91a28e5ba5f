"""The memory plan: grouping, bytes, and refusals that name what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.config.configs import CacheConfig
from octavo.errors import ConfigError
from octavo.kv_cache.planning import fit_max_model_len, max_request_tokens, plan_kv_cache, unify_plans
from octavo.types.kv_spec import FullAttentionSpec, SlidingWindowSpec

CACHE = CacheConfig(block_size=16, memory_bytes=0)
FULL = FullAttentionSpec(16, 2, 64)
SLIDING = SlidingWindowSpec(16, 2, 64, sliding_window=512)
PAGE = FULL.page_size_bytes


def gemma(num_layers=18, period=6, full=FULL, sliding=SLIDING):
    """Every period-th layer is full."""
    return {f"layer{i}": full if i % period == period - 1 else sliding for i in range(num_layers)}


def check_plan(plan, specs):
    """Every layer has one group and one tensor; a tensor never serves two layers of one group."""
    names = [name for group in plan.groups for name in group.layer_names]
    assert sorted(names) == sorted(specs)
    assert sorted(name for tensor in plan.tensors for name in tensor.shared_by) == sorted(specs)
    group_of = {name: i for i, group in enumerate(plan.groups) for name in group.layer_names}
    spec_of = {name: group.spec for group in plan.groups for name in group.layer_names}
    for tensor in plan.tensors:
        groups = [group_of[name] for name in tensor.shared_by]
        assert len(groups) == len(set(groups))
        for name in tensor.shared_by:
            assert tensor.size_bytes == plan.num_blocks * spec_of[name].page_size_bytes


def test_equal_layers_make_one_group_with_a_tensor_each():
    specs = {f"layer{i}": FULL for i in range(30)}
    plan = plan_kv_cache(specs, 1000 * 30 * PAGE + 5, CACHE, 2048, 1024)
    check_plan(plan, specs)
    assert (plan.num_blocks, len(plan.groups), len(plan.tensors)) == (1000, 1, 30)


def test_full_and_sliding_layers_share_tensors():
    specs = gemma()
    plan = plan_kv_cache(specs, 4000 * 3 * PAGE, CACHE, 8192, 1024)
    check_plan(plan, specs)
    assert (plan.num_blocks, len(plan.groups), len(plan.tensors)) == (4000, 6, 3)
    assert sorted(len(group.layer_names) for group in plan.groups) == [3] * 6


def test_kinds_that_do_not_divide_leave_pages_unused_but_every_layer_served():
    specs = gemma(num_layers=26)  # 4 full, 22 sliding
    plan = plan_kv_cache(specs, 5000 * 4 * PAGE, CACHE, 8192, 1024)
    check_plan(plan, specs)
    assert (len(plan.groups), len(plan.tensors)) == (7, 4)


def test_nearly_equal_kinds_make_two_groups():
    specs = gemma(num_layers=9, period=2)  # 4 full, 5 sliding
    plan = plan_kv_cache(specs, 5000 * 5 * PAGE, CACHE, 8192, 1024)
    check_plan(plan, specs)
    assert len(plan.groups) in (2, 3)
    specs = {f"layer{i}": FULL if i < 9 else SLIDING for i in range(19)}  # 9 and 10
    plan = plan_kv_cache(specs, 5000 * 10 * PAGE, CACHE, 8192, 1024)
    check_plan(plan, specs)
    assert (len(plan.groups), len(plan.tensors)) == (2, 10)


def test_small_pages_get_larger_blocks():
    specs = gemma(full=FullAttentionSpec(16, 2, 64), sliding=SlidingWindowSpec(16, 1, 64, sliding_window=512))
    plan = plan_kv_cache(specs, 4000 * 3 * PAGE, CACHE, 8192, 1024)
    check_plan(plan, specs)
    assert {group.spec.block_size for group in plan.groups} == {16, 32}


def test_pages_that_do_not_divide_get_tensors_of_their_own():
    specs = gemma(full=FullAttentionSpec(16, 3, 64), sliding=SlidingWindowSpec(16, 2, 64, sliding_window=512))
    plan = plan_kv_cache(specs, 10**9, CACHE, 8192, 1024)
    check_plan(plan, specs)
    assert len(plan.tensors) == 18
    assert sum(tensor.size_bytes for tensor in plan.tensors) <= 10**9


def test_hybrid_switched_off_stores_windows_like_full_layers():
    plan = plan_kv_cache(gemma(), 4000 * 18 * PAGE, replace(CACHE, enable_hybrid=False), 8192, 1024)
    assert [type(group.spec) for group in plan.groups] == [FullAttentionSpec]
    assert (plan.num_blocks, len(plan.tensors)) == (4000, 18)


def test_window_that_covers_the_model_length_is_stored_like_full():
    assert len(plan_kv_cache(gemma(), 10**9, CACHE, 512, 1024).groups) == 1
    assert len(plan_kv_cache(gemma(), 10**9, CACHE, 513, 1024).groups) == 6


def test_too_little_memory_names_bytes_and_the_length_that_fits():
    specs = {f"layer{i}": FULL for i in range(4)}
    memory = 40 * 4 * PAGE
    with pytest.raises(ConfigError) as error:
        plan_kv_cache(specs, memory, CACHE, 1024, 1024)
    needed = (1024 // 16 + 1) * 4 * PAGE
    assert f"{needed:,}" in str(error.value)
    assert f"{memory:,}" in str(error.value)
    assert f"at most {39 * 16} fits" in str(error.value)


@pytest.mark.parametrize("specs", [gemma(), {f"layer{i}": FULL for i in range(5)}, gemma(26)])
@pytest.mark.parametrize("num_pages", [0, 17, 400, 1000, 5000])
def test_fitted_length_is_the_longest_that_can_be_planned(specs, num_pages):
    memory = num_pages * PAGE
    fitted = fit_max_model_len(specs, memory, CACHE, 20_000, 1024)
    if fitted:
        plan = plan_kv_cache(specs, memory, CACHE, fitted, 1024)
        assert max_request_tokens(plan, 1024) >= fitted
        assert sum(tensor.size_bytes for tensor in plan.tensors) <= memory
    if fitted < 20_000:
        with pytest.raises(ConfigError):
            plan_kv_cache(specs, memory, CACHE, fitted + 1, 1024)


def test_windows_need_memory_for_their_window_and_one_step_only():
    specs = {f"layer{i}": SLIDING for i in range(2)}
    plan = plan_kv_cache(specs, 200 * 2 * PAGE, CACHE, 10**6, 1024)
    assert max_request_tokens(plan, 1024) > 10**6
    with pytest.raises(ConfigError):
        plan_kv_cache(specs, 200 * 2 * PAGE, CACHE, 10**6, 10**5)


def test_longest_request_of_a_full_cache():
    plan = plan_kv_cache({"layer0": FULL}, 0, replace(CACHE, num_blocks_override=11), 2048, 1024)
    assert plan.num_blocks == 11
    assert max_request_tokens(plan, 1024) == 160


def test_block_override_below_two_is_refused():
    with pytest.raises(ConfigError, match="at least 2"):
        plan_kv_cache({"layer0": FULL}, 0, replace(CACHE, num_blocks_override=1), 2048, 1024)


def test_model_without_a_cache_gets_none_and_bounds_no_length():
    plan = plan_kv_cache({}, 10**9, CACHE, 100, 1024)
    assert plan.groups == plan.tensors == ()
    assert fit_max_model_len({}, 0, CACHE, 100, 1024) == 100
    assert max_request_tokens(plan, 1024) > 10**9


def test_workers_take_the_smallest_number_of_blocks():
    specs = gemma()
    plans = [plan_kv_cache(specs, n * 3 * PAGE, CACHE, 8192, 1024) for n in (4000, 3500, 5000)]
    unified = unify_plans(plans)
    assert [plan.num_blocks for plan in unified] == [3500] * 3
    for plan in unified:
        check_plan(plan, specs)


def test_workers_with_different_groups_are_refused():
    plans = [plan_kv_cache(specs, 10**9, CACHE, 8192, 1024) for specs in (gemma(), {"layer0": FULL})]
    with pytest.raises(ConfigError, match="agree"):
        unify_plans(plans)


def test_workers_with_different_layers_agree_on_groups_and_blocks():
    all_specs = gemma()
    names = list(all_specs)
    stages = [{name: all_specs[name] for name in part} for part in (names[:11], names[11:])]
    plans = unify_plans(
        [
            plan_kv_cache(own, n * PAGE, CACHE, 8192, 1024, all_specs)
            for own, n in zip(stages, (9000, 5000), strict=True)
        ]
    )
    whole = plan_kv_cache(all_specs, 10**9, CACHE, 8192, 1024)
    for plan, own in zip(plans, stages, strict=True):
        check_plan(plan, own)
        assert [group.spec for group in plan.groups] == [group.spec for group in whole.groups]
    merged = [sum((plan.groups[i].layer_names for plan in plans), ()) for i in range(len(whole.groups))]
    assert [set(layer_names) for layer_names in merged] == [set(group.layer_names) for group in whole.groups]
    assert plans[0].num_blocks == plans[1].num_blocks


def test_a_stage_may_lack_a_kind_of_layer_and_ranks_may_have_other_numbers_of_heads():
    all_specs = gemma()
    only_sliding = {f"layer{i}": SlidingWindowSpec(16, 1, 64, sliding_window=512) for i in range(5)}
    plan = plan_kv_cache(only_sliding, 100_000 * PAGE, CACHE, 8192, 1024, all_specs)
    check_plan(plan, only_sliding)
    assert [len(group.layer_names) for group in plan.groups].count(0) == 1, "no full layer here"
    assert {group.spec.num_kv_heads for group in plan.groups if group.layer_names} == {1}
    longest = fit_max_model_len(only_sliding, 600 * PAGE, CACHE, 100_000, 1024, all_specs)
    assert 0 < longest < 100_000, "the other stage's full layers bound what fits here too"
