"""How many processes compute and where they run: the rules of ParallelConfig. `resolve` asks; nothing else does."""

from __future__ import annotations

from dataclasses import replace

from octavo.config import EngineArgs, OctavoConfig, ParallelConfig
from octavo.engine.data_parallel import plan_replicas
from octavo.errors import ConfigError, UnsupportedError
from octavo.loader.checkpoint import Checkpoint
from octavo.log import get_logger
from octavo.models.pooling_registry import check_pooling_sizes
from octavo.models.registry import check_parallel_sizes

logger = get_logger(__name__)

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size")
_NETWORK_FREE_METHODS = ("ngram", "suffix")
# A worker that hangs is named by its executor before the front end gives the whole core up.
_STEP_TIMEOUT_SHARE = 0.8


def parallel_config(args: EngineArgs) -> ParallelConfig:
    """Decide sizes and the executor; raises ConfigError for sizes that fit no executor, UnsupportedError."""
    for name in (*_SIZES, "prefill_context_parallel_size"):
        size = getattr(args, name)
        if size < 1:
            raise ConfigError(f"{name} must be a positive integer, got {size}")
    if args.prefill_context_parallel_size != 1:
        raise UnsupportedError(
            f"prefill_context_parallel_size={args.prefill_context_parallel_size} is not supported: all ranks compute "
            "all tokens of a prompt; use 1, and tensor_parallel_size to divide the work"
        )
    replicas = plan_replicas(args)
    config = ParallelConfig(
        **{name: getattr(args, name) for name in _SIZES},
        cp_kv_cache_interleave_size=_interleave_size(args),
        data_parallel_size_local=max(len(replicas.local), 1),
        num_replicas=len(replicas.served),
        data_parallel_start_rank=replicas.served.start,
        data_parallel_prefix_affinity=args.data_parallel_prefix_affinity,
        worker_cls=None if args.worker_cls == "auto" else args.worker_cls,
        worker_extension_cls=args.worker_extension_cls or None,
        step_timeout_s=args.step_timeout_s * _STEP_TIMEOUT_SHARE or None,
    )
    return replace(config, distributed_executor_backend=_executor_backend(args, config.world_size))


def async_scheduling(args: EngineArgs, parallel: ParallelConfig, has_speculation: bool) -> bool:
    """Decide whether steps are scheduled ahead: by default wherever it can be, for results are the same."""
    if parallel.distributed_executor_backend in ("uni", "external_launcher"):
        obstacle = "the worker computes in the scheduler's own process"
    elif parallel.pipeline_parallel_size > 1:
        obstacle = "a pipeline has steps of other requests in flight"
    elif has_speculation:
        obstacle = "guesses follow from a step's tokens"
    else:
        return args.async_scheduling is not False
    if args.async_scheduling:
        logger.warning("async_scheduling has no effect: %s", obstacle)
    return False


def check_model_is_divisible(config: OctavoConfig, checkpoint: Checkpoint) -> None:
    """Raise ConfigError or UnsupportedError when the model cannot be computed by so many workers together."""
    tp_size, pp_size = config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size
    if config.parallel.world_size == config.parallel.decode_context_parallel_size == 1:
        return
    if config.model.pooling is not None:
        check_pooling_sizes(checkpoint.config, tp_size, pp_size, config.parallel.decode_context_parallel_size)
        return
    dcp_size, method = config.parallel.decode_context_parallel_size, config.speculative and config.speculative.method
    if dcp_size > 1 and method is not None and method not in _NETWORK_FREE_METHODS:
        raise UnsupportedError(
            f"speculative decoding by {method} keeps whole sequences in a cache of its own: use "
            f"{' or '.join(_NETWORK_FREE_METHODS)}, or leave decode_context_parallel_size at 1"
        )
    check_parallel_sizes(checkpoint.config, tp_size, pp_size, dcp_size)


def _interleave_size(args: EngineArgs) -> int:
    new, old = args.cp_kv_cache_interleave_size, args.dcp_kv_cache_interleave_size
    if new is not None and old is not None and new != old:
        raise ConfigError(
            f"cp_kv_cache_interleave_size={new} and dcp_kv_cache_interleave_size={old} are two names of one size; "
            "give one of them"
        )
    size = next((size for size in (new, old) if size is not None), 1)
    if size < 1:
        raise ConfigError(f"cp_kv_cache_interleave_size must be a positive integer, got {size}")
    return size


def _executor_backend(args: EngineArgs, world_size: int) -> str:
    wish = args.distributed_executor_backend
    if wish is None:
        return "uni" if world_size == 1 else "mp"
    if isinstance(wish, type):
        return f"{wish.__module__}:{wish.__qualname__}"
    if wish == "uni" and world_size > 1:
        raise ConfigError(
            f"distributed_executor_backend='uni' runs one worker, but the sizes ask for {world_size}; leave it out"
        )
    return wish
