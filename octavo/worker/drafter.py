"""What guesses with weights of its own. Each method overrides what it needs; what is here is for those that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from octavo.config import OctavoConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.resolve import open_checkpoint
from octavo.loader.weights import WeightSource
from octavo.models.interface import CausalLM
from octavo.ops.interface import Float, Ops
from octavo.ops.kv_layout import KVCache
from octavo.ops.tape import ForwardInputs
from octavo.quantization.open import open_model_weights
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec
from octavo.worker.block_table import BlockTable
from octavo.worker.input_builder import StepInputs
from octavo.worker.request_rows import RequestRows


class Drafter:
    """A Proposer with weights. Call order: load, kv_cache_specs, bind, attach, then in every step follow and propose.

    taps: what it reads of the model, once loaded; see ForwardContext
    """

    taps: tuple[int, ...] = ()

    def __init__(self, config: OctavoConfig, ops: Ops) -> None:
        self._config = config
        self._ops = ops

    def open(self, checkpoint: Checkpoint) -> tuple[Checkpoint, WeightSource]:
        """Open its weights. checkpoint: of the model, beside whose weights they lie if they have no name"""
        draft, load = self._config.speculative, self._config.load
        assert draft is not None, "it is made for one"
        if draft.model is not None:
            checkpoint = open_checkpoint(draft.model, load, revision=draft.revision)
        return checkpoint, open_model_weights(checkpoint, load)

    def load(self, model: CausalLM, checkpoint: Checkpoint) -> None:
        """Read the weights. model, checkpoint: for which it guesses"""
        raise NotImplementedError

    def release(self, weights: bool) -> None:
        """Let the caches go and, if asked to, the weights: undoes bind and perhaps load."""
        raise NotImplementedError

    def kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        """Return what its layers store, by names of its own."""
        return {}

    def bind(self, kv_caches: Mapping[str, KVCache], plan: KVCacheConfig) -> None:
        """Take its layers' caches out of those of the plan."""

    def attach(self, rows: RequestRows, block_tables: Sequence[BlockTable]) -> None:
        """Learn where rows are and their blocks."""
        self._rows = rows

    def guess_seconds(self, block_sizes: Sequence[int]) -> float:
        """Measure what a guess costs. block_sizes: of the KV cache groups; what is written goes to the null block"""
        raise NotImplementedError

    def follow(self, forward: Callable[[ForwardInputs], Float], inputs: ForwardInputs, step: StepInputs) -> Float:
        """Compute a step with the model's `forward`; return the hidden states of inputs.output_rows.

        What the drafter needs of it, it may add to the inputs, and keeps until `propose`.
        """
        return forward(inputs)

    def add(self, row: int, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Begin with a row. See Proposer for this and what follows; the rows have all tokens."""

    def append(self, row: int, token_ids: Sequence[int]) -> None: ...

    def remove(self, row: int) -> None: ...

    def propose(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        raise NotImplementedError
