"""What was decided: frozen sub-configs, each handed only to what uses it, and EngineArgs, what the user wishes.

Nothing here decides: `engine/resolve.py` turns wishes, checkpoint facts and machine facts into these.
"""

from octavo.config.configs import (
    CacheConfig,
    LoadConfig,
    ModelConfig,
    ObservabilityConfig,
    OctavoConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
)
from octavo.config.engine_args import EngineArgs
from octavo.config.pooling import PoolerConfig

__all__ = [
    "CacheConfig",
    "EngineArgs",
    "LoadConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "OctavoConfig",
    "ParallelConfig",
    "PoolerConfig",
    "SchedulerConfig",
    "StructuredOutputsConfig",
]
