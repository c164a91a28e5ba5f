"""How LoRA adapters are kept: the decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LoRADtype = Literal["auto", "int8", "float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class LoRAConfig:
    """Sizes and type. A slot's memory is taken when an adapter is first put there, and kept for the next.

    max_loras: different adapters that requests may use in one step
    max_cpu_loras: adapters that are kept ready, those in use included; those of unfinished requests always are
    dtype: of kept matrices; int8: with scales, for linear layers, whose inputs are rounded like those of a quantised
        model; auto: int8 for layers that are quantised themselves, else that of an adapter's file
    """

    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int
    dtype: LoRADtype
