"""vLLM's module of this name: `from octavo.outputs import RequestOutput` works as there."""

from __future__ import annotations

from octavo.types.outputs import CompletionOutput, RequestOutput

__all__ = ["CompletionOutput", "RequestOutput"]
