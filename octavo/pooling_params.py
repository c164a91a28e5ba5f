"""vLLM's module of this name: `from octavo.pooling_params import PoolingParams` works as there."""

from __future__ import annotations

from octavo.types.pooling import PoolingParams

__all__ = ["PoolingParams"]
