"""Start an engine core: load the weights, measure memory, plan the KV cache, let the workers allocate it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from octavo.config import OctavoConfig
from octavo.engine.core import EngineCore
from octavo.engine.resolve import ResolvedEngine
from octavo.errors import ConfigError
from octavo.executor.interface import Executor
from octavo.kv_cache.planning import fit_max_model_len, max_request_tokens, plan_kv_cache, unify_plans
from octavo.log import get_logger
from octavo.scheduler.scheduler import Scheduler
from octavo.structured.manager import StructuredOutputManager
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec

logger = get_logger(__name__)


@dataclasses.dataclass(frozen=True)
class StartedCore:
    """A core that takes requests. config: final, max_model_len fitted; max_kv_tokens: longest sequence that fits."""

    core: EngineCore
    config: OctavoConfig
    kv_cache_config: KVCacheConfig
    max_kv_tokens: int


def build_engine_core(resolved: ResolvedEngine) -> StartedCore:
    """Start the executor that the configuration names, and a core on it."""
    executor = Executor.get_class(resolved.config)(resolved.config, resolved.checkpoint)
    return start_core(resolved.config, executor)


def start_core(config: OctavoConfig, executor: Executor) -> StartedCore:
    """Plan and allocate the KV cache of an executor whose workers hold their weights; raises ConfigError."""
    specs = executor.get_kv_cache_specs()
    all_specs = {name: spec for worker_specs in specs for name, spec in worker_specs.items()}
    budgets_bytes = executor.determine_available_memory()
    config = _fit_model_len(config, specs, all_specs, budgets_bytes)
    max_model_len, step_tokens = config.model.max_model_len, _max_step_tokens(config)
    plans = unify_plans(
        [
            plan_kv_cache(worker_specs, budget_bytes, config.cache, max_model_len, step_tokens, all_specs)
            for worker_specs, budget_bytes in zip(specs, budgets_bytes, strict=True)
        ]
    )
    executor.initialize_from_config(plans, max_model_len)
    plan = plans[0]
    max_kv_tokens = max_request_tokens(plan, step_tokens)
    _log_plan(plans, max_model_len)
    grammars = StructuredOutputManager(config.structured_outputs.backend)
    # a pooling request ends without the token for which a sequence otherwise needs room
    longest = max_model_len + (config.model.pooling is not None)
    scheduler_config = dataclasses.replace(config.scheduler, max_model_len=longest)
    scheduler = Scheduler(scheduler_config, config.cache, plan, grammar=grammars)
    return StartedCore(EngineCore(executor, scheduler, grammars), config, plan, max_kv_tokens)


def _fit_model_len(
    config: OctavoConfig,
    specs: Sequence[Mapping[str, KVCacheSpec]],
    all_specs: Mapping[str, KVCacheSpec],
    budgets_bytes: Sequence[int],
) -> OctavoConfig:
    """Lower max_model_len, where the user left it open, to what every worker's KV cache can hold."""
    wish = config.model.max_model_len
    if not config.model.fit_max_model_len:
        return config
    fitting = min(
        fit_max_model_len(worker_specs, budget_bytes, config.cache, wish, _max_step_tokens(config), all_specs)
        for worker_specs, budget_bytes in zip(specs, budgets_bytes, strict=True)
    )
    if fitting < _LEAST_MODEL_LEN:
        raise ConfigError(
            f"the KV cache of {min(budgets_bytes):,} bytes holds {fitting} tokens, fewer than one prompt token and "
            "one new token; raise kv_cache_memory_bytes or gpu_memory_utilization"
        )
    if fitting < wish:
        logger.warning(
            "max_model_len is lowered from the model's %d to %d: more does not fit the memory", wish, fitting
        )
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, max_model_len=fitting, fit_max_model_len=False),
        scheduler=dataclasses.replace(config.scheduler, max_model_len=fitting),
    )


def _max_step_tokens(config: OctavoConfig) -> int:
    return config.scheduler.max_num_batched_tokens + config.scheduler.num_lookahead_tokens


def _log_plan(plans: Sequence[KVCacheConfig], max_model_len: int) -> None:
    plan = plans[0]
    if not plan.groups:
        logger.info(
            "no KV cache: all tokens of a request are computed at once; texts of up to %d tokens", max_model_len
        )
        return
    sizes_gib = [sum(tensor.size_bytes for tensor in one.tensors) / 2**30 for one in plans]
    by_rank = f" ({', '.join(f'{size:.2f}' for size in sizes_gib)} by rank)" if len(plans) > 1 else ""
    block_sizes = sorted({group.spec.block_size for group in plan.groups})
    logger.info(
        "KV cache: %d blocks of %s tokens, %.2f GiB%s%s; sequences of up to %d tokens",
        plan.num_blocks,
        " or ".join(map(str, block_sizes)),
        sum(sizes_gib),
        by_rank,
        f", {len(plan.groups)} groups of layers" if len(plan.groups) > 1 else "",
        max_model_len,
    )


_LEAST_MODEL_LEN = 2
