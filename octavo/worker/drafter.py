"""What guesses with weights of its own. Each method overrides what it needs; what is here is for those that do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from octavo.config import OctavoConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.hf_config import HFConfig
from octavo.loader.resolve import open_checkpoint
from octavo.loader.weights import WeightSource
from octavo.models.interface import CausalLM
from octavo.ops.interface import Float, Ops
from octavo.ops.kv_layout import KVCache
from octavo.ops.tape import ForwardInputs
from octavo.quantization.open import open_model_weights
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec
from octavo.worker.block_table import BlockTable
from octavo.worker.draft_network import DraftNetwork
from octavo.worker.draft_step import step_seconds
from octavo.worker.input_builder import StepInputs
from octavo.worker.request_rows import RequestRows


class Drafter:
    """A Proposer with weights. Call order: load, kv_cache_specs, bind, attach, then in every step follow and propose.

    taps: what it reads of the model, once loaded; see ForwardContext
    """

    taps: tuple[int, ...] = ()
    _network: DraftNetwork | None = None  # where it stores keys and values
    _rows: RequestRows

    def __init__(self, config: OctavoConfig, ops: Ops) -> None:
        assert config.speculative is not None, "it is made for one"
        self._speculative = config.speculative
        self._config = config
        self._ops = ops

    def open(self, checkpoint: Checkpoint) -> tuple[HFConfig, WeightSource]:
        """Open its weights. checkpoint: of the model, beside whose weights they lie if they have no name"""
        draft, load = self._speculative, self._config.load
        if draft.model is not None:
            checkpoint = open_checkpoint(draft.model, load, revision=draft.revision)
        return checkpoint.config, open_model_weights(checkpoint, load)

    def load(self, model: CausalLM, checkpoint: Checkpoint) -> None:
        """Read the weights. model, checkpoint: for which it guesses"""
        raise NotImplementedError

    def release(self, weights: bool) -> None:
        """Let the caches go and, if asked to, the weights: undoes bind and perhaps load."""
        if self._network is not None:
            self._network.release(weights)

    def kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        """Return what its layers store, by names of its own."""
        return {} if self._network is None else self._network.kv_cache_specs()

    def bind(self, kv_caches: Mapping[str, KVCache], plan: KVCacheConfig) -> None:
        """Take its layers' caches out of those of the plan."""
        if self._network is not None:
            self._network.bind(kv_caches, plan)

    def attach(self, rows: RequestRows, block_tables: Sequence[BlockTable]) -> None:
        """Learn where rows are and their blocks."""
        self._rows = rows
        if self._network is not None:
            self._network.attach(rows, block_tables)

    def guess_seconds(self, block_sizes: Sequence[int]) -> float:
        """Measure what a guess costs. block_sizes: of the KV cache groups; what is written goes to the null block"""
        assert self._network is not None, "without one it knows better"
        return step_seconds(self._network.bound, block_sizes, 1, self._network.hidden_like(1))

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
