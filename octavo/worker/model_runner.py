"""Runs the model for one step: applies the scheduler's changes to the rows, forwards, samples.

One runner for all devices. What a feature needs beyond this is a helper object beside `_prompt_logprobs`, not a branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.config import OctavoConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.models.interface import CausalLM
from octavo.models.registry import build_model
from octavo.ops.interface import AttentionMetadata, Float, Int, Ops
from octavo.ops.kv_layout import KVCache
from octavo.ops.tape import ForwardInputs, TapeLimits
from octavo.quantization.open import open_model_weights
from octavo.sampling.sampler import Sampler
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec
from octavo.types.messages import PackedLogprobs
from octavo.types.step import CachedRequestData, GrammarOutput, ModelRunnerOutput, NewRequestData, SchedulerOutput
from octavo.worker.block_table import BlockTable
from octavo.worker.bound_model import BoundModel, bind_model
from octavo.worker.input_builder import StepInputs, build_inputs
from octavo.worker.kv_memory import allocate_kv_caches, cache_in
from octavo.worker.prompt_logprobs_step import PromptLogprobsStep
from octavo.worker.request_rows import RequestRows


class ModelRunner:
    """Owns the model, the KV caches, the rows and the sampler. Call order: load_model, initialize_kv_cache, steps."""

    model: CausalLM
    _kv_caches: dict[str, KVCache]
    _bound: BoundModel

    def __init__(self, config: OctavoConfig, ops: Ops) -> None:
        self._config = config
        self.ops = ops
        # between execute_model and sample_tokens: the step's inputs, the requests that sample, and hidden states
        # [R, H]: one row for each of these, then those of prompt log-probabilities
        self._executed: tuple[StepInputs, NDArray[np.intp], Float] | None = None

    # -- start ---------------------------------------------------------------------------------------------------------

    def load_model(self, checkpoint: Checkpoint) -> None:
        weights = open_model_weights(checkpoint, self._config.load)
        self.model = build_model(checkpoint.config, weights, self.ops, self._config.model.max_model_len)

    def kv_cache_specs(self) -> Mapping[str, KVCacheSpec]:
        return self.model.kv_cache_specs(self._config.cache.block_size, self._config.cache.dtype)

    def initialize_kv_cache(self, plan: KVCacheConfig, max_model_len: int) -> None:
        """Allocate caches, rows and per-row state for the plan."""
        max_num_seqs = self._config.scheduler.max_num_seqs
        vocab_size = self._config.model.vocab_size
        self._plan = plan
        self._allocate_caches()
        self._rows = RequestRows(max_num_seqs, max_model_len)
        self._block_tables = [BlockTable(max_num_seqs, max_model_len, g.spec.block_size) for g in plan.groups]
        self._sampler = Sampler(
            self.ops,
            vocab_size,
            max_num_seqs,
            self._config.model.logprobs_mode,
            self._config.model.logits_processors,
        )
        self._prompt_logprobs = PromptLogprobsStep(
            self.ops, vocab_size, lambda hidden: self.model.compute_logits(hidden, self.ops)
        )

    def release_memory(self, weights: bool) -> None:
        """Drop the KV caches and, if asked to, the weights; no step may follow before `regain_memory`."""
        del self._bound
        self._kv_caches = {}
        if weights:
            del self.model

    def regain_memory(self, checkpoint: Checkpoint) -> None:
        """Undo `release_memory`; nothing is in the caches."""
        if not hasattr(self, "model"):
            self.load_model(checkpoint)
        self._allocate_caches()

    def profile_run(self, num_tokens: int) -> int | None:
        """Forward one dummy prompt of `num_tokens` tokens and its logits, over caches of its own.

        Returns the bytes of activations of the largest step, where the tape knows them.
        """
        specs = self.kv_cache_specs()
        caches: dict[str, KVCache] = {}
        metadata: list[AttentionMetadata] = []
        positions = np.arange(num_tokens, dtype=np.int32)
        for name, spec in specs.items():
            num_blocks = -(-num_tokens // spec.block_size)
            caches[name] = cache_in(np.zeros((num_blocks + 1) * spec.page_size_bytes, np.uint8), spec, num_blocks + 1)
            metadata.append(
                AttentionMetadata(
                    query_start=np.array([0, num_tokens], np.int32),
                    seq_lens=np.array([num_tokens], np.int32),
                    block_table=np.arange(1, num_blocks + 1, dtype=np.int32)[None, :],
                    slot_mapping=positions.astype(np.int64) + spec.block_size,
                )
            )
        bound = self._bind(caches, [(name,) for name in specs])
        last = np.array([num_tokens - 1], np.int32)
        bound.logits(bound.forward(ForwardInputs(np.zeros(num_tokens, np.int32), positions, last, metadata)))
        return bound.tape_bytes

    def _allocate_caches(self) -> None:
        self._kv_caches = allocate_kv_caches(self._plan)
        self._bound = self._bind(self._kv_caches, [group.layer_names for group in self._plan.groups])

    def _bind(self, kv_caches: Mapping[str, KVCache], layer_groups: Sequence[Sequence[str]]) -> BoundModel:
        scheduler = self._config.scheduler
        limits = TapeLimits(
            max_tokens=scheduler.max_num_batched_tokens,
            max_output_rows=scheduler.max_num_batched_tokens,
            max_logits_rows=scheduler.max_num_seqs,
            hidden_size=self.model.facts.hidden_size,
            num_groups=len(layer_groups),
        )
        eager = self._config.model.enforce_eager
        return bind_model(self.model, self.ops, kv_caches, layer_groups, None if eager else limits)

    # -- step ----------------------------------------------------------------------------------------------------------

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput | None:
        """Forward the scheduled tokens; None when `sample_tokens` must follow."""
        self._update_rows(step)
        if not step.total_num_scheduled_tokens:
            return ModelRunnerOutput()
        inputs = build_inputs(step.num_scheduled_tokens, self._rows, self._block_tables)
        sampling = np.flatnonzero(inputs.samples)
        output_rows = inputs.query_start[1:][sampling] - 1  # the last token of each
        prompt_tokens = self._prompt_logprobs.plan(inputs, self._rows)
        if len(prompt_tokens):
            output_rows = np.concatenate([output_rows, prompt_tokens])
        hidden = self._bound.forward(ForwardInputs(inputs.token_ids, inputs.positions, output_rows, inputs.metadata))
        self._executed = (inputs, sampling, hidden)
        return None

    def sample_tokens(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        """Sample a token for every request of the step whose known tokens are all computed."""
        assert self._executed is not None, "sample_tokens follows an execute_model that returned None"
        inputs, sampling, hidden = self._executed
        self._executed = None
        prompt_logprobs = self._prompt_logprobs.collect(hidden[len(sampling) :])
        output = self._sample(inputs, sampling, hidden, grammar) if len(sampling) else ModelRunnerOutput()
        output.prompt_logprobs = prompt_logprobs
        return output

    def _sample(
        self, inputs: StepInputs, sampling: NDArray[np.intp], hidden: Float, grammar: GrammarOutput | None
    ) -> ModelRunnerOutput:
        logits = self._bound.logits(hidden[: len(sampling)])
        rows = inputs.rows[sampling]
        request_ids = [inputs.request_ids[i] for i in sampling.tolist()]
        bitmask = None if grammar is None else _bitmask_rows(grammar, request_ids)
        sampled = self._sampler.sample(logits, rows, bitmask)
        self._rows.append_tokens(rows, sampled.token_ids)
        logprobs: dict[str, PackedLogprobs] = {request_ids[i]: packed for i, packed in sampled.logprobs.items()}
        failures = {request_ids[i]: text for i, text in sampled.failures.items()}
        token_ids = {
            request_id: [token_id]
            for request_id, token_id in zip(request_ids, sampled.token_ids, strict=True)
            if request_id not in failures
        }
        return ModelRunnerOutput(sampled_token_ids=token_ids, logprobs=logprobs, failures=failures)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _update_rows(self, step: SchedulerOutput) -> None:
        # rows are given up before they are taken: a full batch may swap requests in one step
        for request_id in (*step.finished_request_ids, *step.preempted_request_ids):
            if request_id in self._rows:
                self._remove_request(request_id)
        for request in step.scheduled_new_requests:
            self._add_request(request)
        self._update_cached(step.scheduled_cached_requests)

    def _add_request(self, request: NewRequestData) -> None:
        row = self._rows.add(request)
        for table, block_ids in zip(self._block_tables, request.block_ids, strict=True):
            table.append(row, block_ids)
        self._sampler.add_request(row, request)
        self._prompt_logprobs.add(request)

    def _remove_request(self, request_id: str) -> None:
        row = self._rows.remove(request_id)
        for table in self._block_tables:
            table.clear(row)
        self._sampler.remove_request(row)
        self._prompt_logprobs.remove(request_id)

    def _update_cached(self, cached: CachedRequestData) -> None:
        self._rows.set_computed(cached.request_ids, cached.num_computed_tokens)
        for request_id, new_block_ids in zip(cached.request_ids, cached.new_block_ids, strict=True):
            if new_block_ids is not None:
                row = self._rows.row(request_id)
                for table, block_ids in zip(self._block_tables, new_block_ids, strict=True):
                    table.append(row, block_ids)


def _bitmask_rows(grammar: GrammarOutput, request_ids: list[str]) -> Int:
    """Return one row of mask words per request, [N, words] int32: all ones where no grammar constrains."""
    masks = np.frombuffer(grammar.bitmask, np.int32).reshape(len(grammar.request_ids), -1)
    rows = np.full((len(request_ids), masks.shape[1]), -1, np.int32)
    row_of = {request_id: row for row, request_id in enumerate(request_ids)}
    for request_id, mask in zip(grammar.request_ids, masks, strict=True):
        if request_id in row_of:
            rows[row_of[request_id]] = mask
    return rows
