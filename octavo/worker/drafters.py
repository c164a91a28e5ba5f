"""What guesses with weights of its own, and which method is which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from octavo.config import OctavoConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.models.interface import CausalLM
from octavo.ops.interface import Float, Ops
from octavo.ops.kv_layout import KVCache
from octavo.ops.tape import ForwardInputs
from octavo.speculative.interface import Proposer
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec
from octavo.worker.block_table import BlockTable
from octavo.worker.draft_model import DraftModel
from octavo.worker.hidden_drafter import HiddenDrafter
from octavo.worker.input_builder import StepInputs
from octavo.worker.medusa_drafter import MedusaDrafter
from octavo.worker.request_rows import RequestRows


class Drafter(Proposer, Protocol):
    """A Proposer with weights. Call order: load, kv_cache_specs, bind, attach, then in every step follow and propose.

    taps: what it reads of the model, once loaded; see ForwardContext
    """

    taps: tuple[int, ...]

    def load(self, model: CausalLM, checkpoint: Checkpoint) -> None:
        """Read the weights. model, checkpoint: for which it guesses"""
        ...

    def release(self, weights: bool) -> None:
        """Let the caches go and, if asked to, the weights: undoes bind and perhaps load."""
        ...

    def kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        """Return what its layers store, by names of its own."""
        ...

    def bind(self, kv_caches: Mapping[str, KVCache], plan: KVCacheConfig) -> None:
        """Take its layers' caches out of those of the plan."""
        ...

    def attach(self, rows: RequestRows, block_tables: Sequence[BlockTable]) -> None:
        """Learn where rows are and their blocks."""
        ...

    def guess_seconds(self, block_sizes: Sequence[int]) -> float:
        """Measure what a guess costs. block_sizes: of the KV cache groups; what is written goes to the null block"""
        ...

    def follow(self, forward: Callable[[ForwardInputs], Float], inputs: ForwardInputs, step: StepInputs) -> Float:
        """Compute a step with the model's `forward`; return the hidden states of inputs.output_rows.

        What the drafter needs of it, it may add to the inputs, and keeps until `propose`.
        """
        ...


def make_drafter(config: OctavoConfig, ops: Ops) -> Drafter | None:
    """Return what guesses by the configured method; None where that needs no weights."""
    if config.speculative is None or config.speculative.method in ("ngram", "suffix"):
        return None
    if config.speculative.method == "draft_model":
        return DraftModel(config, ops)
    return MedusaDrafter(config, ops) if config.speculative.method == "medusa" else HiddenDrafter(config, ops)
