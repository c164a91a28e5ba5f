"""vLLM's place of LoRARequest."""

from octavo.types.adapters import LoRARequest

__all__ = ["LoRARequest"]
