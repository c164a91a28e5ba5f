"""What must be the same for all replicas of an engine, wherever they run."""

from __future__ import annotations

from dataclasses import replace

from octavo import __version__
from octavo.config import EngineArgs, OctavoConfig


def engine_facts(args: EngineArgs, config: OctavoConfig) -> dict[str, str]:
    """Return what must be the same for all replicas, by name, so that it does not matter where a request goes."""
    model = replace(config.model, model="", served_model_name="", max_model_len=0)
    return {
        "the version of Octavo": __version__,
        "data_parallel_size": str(args.data_parallel_size),
        "the model": repr(model),
        "quantization": repr((config.load.quantization, config.load.exact)),
        "kv_cache_dtype": config.cache.dtype,
        "block_size": str(config.cache.block_size),
        "LoRA": repr(config.lora),
    }
