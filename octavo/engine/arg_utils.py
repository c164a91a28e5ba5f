"""vLLM's module of this name: `from octavo.engine.arg_utils import AsyncEngineArgs` works as there."""

from __future__ import annotations

from octavo.config import EngineArgs

AsyncEngineArgs = EngineArgs

__all__ = ["AsyncEngineArgs", "EngineArgs"]
