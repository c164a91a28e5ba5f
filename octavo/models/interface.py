"""What the worker knows of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from octavo.attention.context import ForwardContext
from octavo.ops.interface import Float, Int, Ops
from octavo.types.kv_spec import KVCacheSpec


@dataclass(frozen=True)
class ModelFacts:
    """What the engine must know of a checkpoint before it loads a weight.

    vocab_size: width of the logits
    max_position: longest sequence that the model's positions support (RoPE scaling already applied)
    """

    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_position: int


class CausalLM(Protocol):
    """A decoder that turns tokens into hidden states and hidden states into logits."""

    @property
    def facts(self) -> ModelFacts: ...

    def kv_cache_specs(self, block_size: int, dtype: str) -> Mapping[str, KVCacheSpec]:
        """Return what each attention layer stores, by layer name, in layer order."""

    def forward(self, token_ids: Int, positions: Int, context: ForwardContext) -> Float:
        """Compute hidden states after the final norm for token_ids [T] at positions [T]; stores K and V.

        Returns [R, H], a row for each of context.output_rows, or [T, H] where that is None. Calls nothing but ops and
        views (see `octavo.ops.tape.ModelFunctions`), so that it can be recorded.
        """

    def compute_logits(self, hidden: Float, ops: Ops) -> Float:
        """Return logits [R, V] float32 (scaled and soft-capped as the model does) of hidden [R, H]."""
