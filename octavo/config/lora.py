"""How LoRA adapters are kept: the decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LoRADtype = Literal["auto", "float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class LoRAConfig:
    """Sizes and type. A slot's memory is taken when an adapter is first put there, and kept for the next.

    max_loras: different adapters that requests may use in one step
    max_cpu_loras: adapters that are kept ready, those in use included; those of unfinished requests always are
    dtype: of kept matrices; auto: that of an adapter's file. Products and sums are float32 with all of them
    """

    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int
    dtype: LoRADtype
