"""How LoRA adapters are kept: the decision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoRAConfig:
    """Sizes. Memory for max_loras adapters of max_lora_rank is taken when the model is loaded.

    max_loras: different adapters that requests may use in one step
    max_cpu_loras: adapters that are kept ready, those in use included; those of unfinished requests always are
    """

    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int
