"""Runs the model for one step: applies the scheduler's changes to the rows, forwards, samples.

One runner for all devices. What a feature needs beyond this is a helper object beside `_prompt_logprobs`, not a branch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from octavo.config import OctavoConfig
from octavo.config.speculative import SpeculativeConfig
from octavo.distributed.connect import ALONE, WorkerGroups
from octavo.loader.checkpoint import Checkpoint
from octavo.models.interface import CausalLM
from octavo.models.pooling import PoolingModel
from octavo.models.pooling_registry import build_pooling_model
from octavo.models.registry import build_model
from octavo.models.sharing import ModelShare
from octavo.ops.interface import Int, Ops
from octavo.ops.kv_layout import DealtTokens, KVCache
from octavo.ops.tape import ForwardInputs, TapeLimits
from octavo.quantization.open import open_model_weights
from octavo.sampling.sampler import Sampler
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec
from octavo.types.step import CachedRequestData, GrammarOutput, ModelRunnerOutput, NewRequestData, SchedulerOutput
from octavo.worker.adapter_step import AdapterStep
from octavo.worker.block_table import BlockTable
from octavo.worker.bound_model import BoundModel, WantedRows, bind_model
from octavo.worker.draft_step import DraftStep, draft_output_rows, make_proposer, measure_costs
from octavo.worker.drafters import make_drafter
from octavo.worker.input_builder import StepInputs, build_inputs, flatten
from octavo.worker.kv_memory import allocate_kv_caches, cache_in
from octavo.worker.pooling_step import PoolingStep
from octavo.worker.prompt_logprobs_step import PromptLogprobsStep
from octavo.worker.request_rows import RequestRows
from octavo.worker.stage_border import StageBorder


class ModelRunner:
    """Owns the model, the KV caches, the rows and the sampler. Call order: load_model, initialize_kv_cache, steps."""

    model: CausalLM
    _kv_caches: dict[str, KVCache]
    _bound: BoundModel

    def __init__(self, config: OctavoConfig, ops: Ops, groups: WorkerGroups = ALONE) -> None:
        self._config = config
        self.ops = ops
        self._groups = groups
        interleave = config.parallel.cp_kv_cache_interleave_size
        self._dealt = DealtTokens(groups.context.rank, groups.context.size, interleave)
        self._drafter = make_drafter(config, ops)
        self.adapters: AdapterStep | None = None
        if config.lora is not None:
            self.adapters = AdapterStep(config.lora, config.scheduler.max_num_seqs)
        # between execute_model and sample_tokens
        self._executed: _Executed | None = None

    # -- start ---------------------------------------------------------------------------------------------------------

    def load_model(self, checkpoint: Checkpoint) -> None:
        weights = open_model_weights(checkpoint, self._config.load)
        max_model_len = self._config.model.max_model_len
        groups = self._groups
        share = ModelShare(groups.tensor, groups.pipeline.rank, groups.pipeline.size, groups.context, self._dealt)
        if self._config.model.pooling is None:
            self.model = build_model(checkpoint.config, weights, self.ops, max_model_len, share)
        else:
            files = checkpoint.sentence_transformers
            dense = files.dense if files is not None else ()
            self.model = build_pooling_model(checkpoint.config, weights, dense, self.ops, max_model_len, share)
        self._border = StageBorder(self._groups.pipeline, self.model.facts.hidden_size)
        if self._drafter is not None:
            self._drafter.load(self.model, checkpoint)
        if self.adapters is not None:  # after drafters, which take the model's own embedding
            self.model = self.adapters.attach(self.model, checkpoint.config, share, self.ops)
        if checkpoint.gguf is not None:
            checkpoint.gguf.release_pages()

    def kv_cache_specs(self) -> Mapping[str, KVCacheSpec]:
        specs = self.model.kv_cache_specs(self._config.cache.block_size, self._config.cache.dtype)
        return specs if self._drafter is None else {**specs, **self._drafter.kv_cache_specs()}

    def initialize_kv_cache(self, plan: KVCacheConfig, max_model_len: int) -> None:
        """Allocate caches, rows and per-row state for the plan."""
        max_num_seqs = self._config.scheduler.max_num_seqs
        vocab_size = self._config.model.vocab_size
        self._plan = plan
        self._allocate_caches()
        self._rows = RequestRows(max_num_seqs, max_model_len)
        sizes = [group.spec.block_size for group in plan.groups]
        self._block_tables = [BlockTable(max_num_seqs, max_model_len, size, self._dealt) for size in sizes]
        self._sampler = Sampler(
            self.ops, vocab_size, max_num_seqs, self._config.model.logprobs_mode, self._config.model.logits_processors
        )
        self._prompt_logprobs = PromptLogprobsStep(self.ops, vocab_size)
        self._pooling: PoolingStep | None = None
        if isinstance(self.model, PoolingModel):
            self._pooling = self._pooling_step(self.model)
        self._drafts: DraftStep | None = None
        if self._config.speculative is not None and self._border.is_last:
            self._drafts = self._draft_step(self._config.speculative)

    def release_memory(self, weights: bool) -> None:
        """Drop the KV caches and, if asked to, the weights; no step may follow before `regain_memory`."""
        del self._bound
        self._kv_caches = {}
        if self._drafter is not None:
            self._drafter.release(weights)
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
        caches: dict[str, KVCache] = {}
        tables: list[BlockTable] = []
        for name, spec in self.kv_cache_specs().items():
            num_blocks = -(-num_tokens // spec.block_size)
            table = BlockTable(1, num_tokens, spec.block_size, self._dealt)
            table.append(0, range(1, num_blocks + 1))
            tables.append(table)
            caches[name] = cache_in(np.zeros((num_blocks + 1) * spec.page_size_bytes, np.uint8), spec, num_blocks + 1)
        row, begin, count = np.zeros(1, np.intp), np.zeros(1, np.int32), np.array([num_tokens], np.int32)
        step = flatten(row, begin, count, np.zeros((1, num_tokens), np.int32), tables)
        bound = self._bind(caches, [(name,) for name in caches])
        hidden = self._border.empty(num_tokens)
        hidden = bound.forward(ForwardInputs(step.token_ids, step.positions, count - 1, step.metadata, hidden))
        if self._gives_logits():
            bound.logits(hidden)
        return bound.tape_bytes

    def _allocate_caches(self) -> None:
        self._kv_caches = allocate_kv_caches(self._plan)
        self._bound = self._bind(self._kv_caches, [group.layer_names for group in self._plan.groups])
        if self._drafter is not None:
            self._drafter.bind(self._kv_caches, self._plan)

    def _draft_step(self, config: SpeculativeConfig) -> DraftStep:
        max_rows = self._max_logits_rows()
        max_tokens = min(max_rows, self._config.scheduler.max_num_batched_tokens, self._config.model.max_model_len)
        block_sizes = [group.spec.block_size for group in self._plan.groups]
        guess_seconds, drafter = 0.0, self._drafter
        if drafter is not None:
            drafter.attach(self._rows, self._block_tables)
            guess_seconds = drafter.guess_seconds(block_sizes)
        costs = measure_costs(self._bound, guess_seconds, block_sizes, max_tokens, self._border.empty)
        return DraftStep(config, self._rows, self._sampler, max_rows, drafter or make_proposer(config), costs)

    def _pooling_step(self, model: PoolingModel) -> PoolingStep:
        config = self._config.model.pooling
        assert config is not None, "a pooling model is built for a pooling engine"
        head = (lambda states: self._bound.logits(states)) if model.steps else None
        return PoolingStep(config, model.second_text_offset, head)

    def _bind(self, kv_caches: Mapping[str, KVCache], layer_groups: Sequence[Sequence[str]]) -> BoundModel:
        scheduler = self._config.scheduler
        max_tokens = scheduler.max_num_batched_tokens
        limits = TapeLimits(
            max_tokens=max_tokens,
            max_output_rows=max_tokens,
            max_logits_rows=self._max_logits_rows(),
            hidden_size=self.model.facts.hidden_size,
            num_groups=max(1, len(layer_groups)),
            takes_hidden=not self._border.is_first,
            takes_adapters=self.adapters is not None,
        )
        eager = self._config.model.enforce_eager or not self._groups.tensor.in_tape
        groups = layer_groups or [()]
        rows = None if self.adapters is None else self.adapters.rows
        taps = () if self._drafter is None else self._drafter.taps
        return bind_model(
            self.model, self.ops, kv_caches, groups, None if eager else limits, self._gives_logits(), rows, taps
        )

    def _max_logits_rows(self) -> int:
        scheduler, speculative = self._config.scheduler, self._config.speculative
        if self._config.model.pooling is not None:
            return scheduler.max_num_batched_tokens  # every token may be scored
        return scheduler.max_num_seqs + (0 if speculative is None else speculative.num_speculative_tokens)

    def _gives_logits(self) -> bool:
        has_head = not isinstance(self.model, PoolingModel) or len(self.model.steps) > 0
        return self._border.is_last and has_head

    # -- step ----------------------------------------------------------------------------------------------------------

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput | None:
        """Forward the scheduled tokens; None when `sample_tokens` must follow."""
        self._update_rows(step)
        if not step.total_num_scheduled_tokens:
            return ModelRunnerOutput()
        for request_id, draft in step.scheduled_spec_tokens.items():
            self._rows.place_drafts(self._rows.row(request_id), draft)
        inputs = build_inputs(step.num_scheduled_tokens, self._rows, self._block_tables)
        pooled_rows = _NO_ROWS if self._pooling is None else self._pooling.plan(inputs)
        if not self._border.is_last:
            self._border.send(self._forward(inputs, _NO_ROWS).hidden)
            return ModelRunnerOutput()
        if self._pooling is not None:
            return self._pooling.collect(self._forward(inputs, pooled_rows).hidden)
        sampling = inputs.samples.nonzero()[0]
        request_ids = [inputs.request_ids[i] for i in sampling.tolist()]
        drafts: list[list[int]] | None = None
        if step.scheduled_spec_tokens:
            drafts = [step.scheduled_spec_tokens.get(request_id, []) for request_id in request_ids]
            output_rows = draft_output_rows(inputs, sampling, drafts)
        else:
            output_rows = inputs.query_start[1:][sampling] - 1  # the last token of each
        num_sampled = len(output_rows)
        prompt_tokens = self._prompt_logprobs.plan(inputs, self._rows)
        if len(prompt_tokens):
            output_rows = np.concatenate([output_rows, prompt_tokens])
        wanted = self._forward(inputs, output_rows)
        self._executed = _Executed(
            request_ids, inputs.rows[sampling], drafts, wanted[:num_sampled], wanted[num_sampled:]
        )
        return None

    def _forward(self, inputs: StepInputs, output_rows: Int) -> WantedRows:
        hidden = self._border.receive(len(inputs.token_ids))
        forward_inputs = ForwardInputs(inputs.token_ids, inputs.positions, output_rows, inputs.metadata, hidden)
        if self.adapters is not None:
            slots = self.adapters.token_slots(inputs.rows, inputs.query_start)
            forward_inputs.adapter_slots, forward_inputs.output_adapter_slots = slots, slots[output_rows]
        if self._drafter is not None:
            states = self._drafter.follow(self._bound.forward, forward_inputs, inputs)
        else:
            states = self._bound.forward(forward_inputs)
        return WantedRows(states, forward_inputs.output_adapter_slots)

    def sample_tokens(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        """Sample a token for every request of the step whose known tokens are all computed."""
        assert self._executed is not None, "sample_tokens follows an execute_model that returned None"
        executed, self._executed = self._executed, None
        prompt_logprobs = self._prompt_logprobs.collect(self._bound.eager_logits, executed.prompt_rows)
        if grammar is not None and grammar.late_request_ids:
            executed = executed.without(grammar.late_request_ids)
        output = self._sample(executed, grammar) if executed.request_ids else ModelRunnerOutput()
        output.prompt_logprobs = prompt_logprobs
        if self._drafts is not None:
            output.draft_token_ids = self._drafts.propose(output.sampled_token_ids)
        return output

    def _sample(self, executed: _Executed, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        request_ids, rows, drafts = executed.request_ids, executed.rows, executed.drafts
        bitmask = None if grammar is None or not grammar.request_ids else _bitmask_rows(grammar, request_ids, drafts)
        if drafts is not None:
            assert self._drafts is not None, "only what proposes guesses gets any"
            verified = self._drafts.verify(self._bound.logits, executed.wanted, rows, drafts, bitmask)
            new, logprobs, failures = verified.token_ids, verified.logprobs, verified.failures
        else:
            logits = self._bound.logits(executed.wanted.hidden, executed.wanted.slots)
            sampled = self._sampler.sample(logits, rows, bitmask)
            self._rows.append_tokens(rows, sampled.token_ids)
            new, logprobs, failures = [[token_id] for token_id in sampled.token_ids], sampled.logprobs, sampled.failures
        token_ids = dict(zip(request_ids, new, strict=True))
        for i in failures:
            del token_ids[request_ids[i]]
        return ModelRunnerOutput(
            sampled_token_ids=token_ids,
            logprobs={request_ids[i]: packed for i, packed in logprobs.items()},
            failures={request_ids[i]: text for i, text in failures.items()},
        )

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
        if self._pooling is not None:
            self._pooling.add(request)
        if self.adapters is not None:
            self.adapters.add(row, request.adapter)
        if self._drafts is not None:
            self._drafts.add(row, request)

    def _remove_request(self, request_id: str) -> None:
        row = self._rows.remove(request_id)
        for table in self._block_tables:
            table.clear(row)
        self._sampler.remove_request(row)
        self._prompt_logprobs.remove(request_id)
        if self._pooling is not None:
            self._pooling.remove(request_id)
        if self.adapters is not None:
            self.adapters.remove(row)
        if self._drafts is not None:
            self._drafts.remove(row)

    def _update_cached(self, cached: CachedRequestData) -> None:
        self._rows.set_computed(cached.request_ids, cached.num_computed_tokens)
        if cached.new_token_ids:
            self._rows.take_tokens(cached.request_ids, cached.num_computed_tokens, cached.new_token_ids)
        for request_id, new_block_ids in zip(cached.request_ids, cached.new_block_ids, strict=True):
            if new_block_ids is not None:
                row = self._rows.row(request_id)
                for table, block_ids in zip(self._block_tables, new_block_ids, strict=True):
                    table.append(row, block_ids)


_NO_ROWS = np.zeros(0, np.int32)


@dataclass(slots=True)
class _Executed:
    """A forward whose tokens are still to be sampled.

    request_ids, rows: the requests that get a token; drafts: guesses of each, None where nobody has any
    wanted: [N, H], of each request its last known token and its guesses; prompt_rows: for prompt log-probabilities
    """

    request_ids: list[str]
    rows: NDArray[np.intp]
    drafts: list[list[int]] | None
    wanted: WantedRows
    prompt_rows: WantedRows

    def without(self, request_ids: Collection[str]) -> _Executed:
        """Return the same for the other requests: these get no token in this step."""
        is_kept = np.array([request_id not in request_ids for request_id in self.request_ids])
        names, drafts = list(compress(self.request_ids, is_kept)), None
        has_line = is_kept
        if self.drafts is not None:
            drafts = list(compress(self.drafts, is_kept))
            has_line = np.repeat(is_kept, [len(draft) + 1 for draft in self.drafts])
        return _Executed(names, self.rows[is_kept], drafts, self.wanted[has_line], self.prompt_rows)


def _bitmask_rows(grammar: GrammarOutput, request_ids: list[str], drafts: list[list[int]] | None) -> Int:
    """Return a line of mask words per request and guess, [N, words] int32: all ones where no grammar constrains."""
    counts = [1] * len(request_ids) if drafts is None else [len(draft) + 1 for draft in drafts]
    ends = np.cumsum(counts).tolist()
    lines_of = {
        request_id: range(end - count, end) for request_id, count, end in zip(request_ids, counts, ends, strict=True)
    }
    places = [line for request_id in grammar.request_ids for line in lines_of[request_id]]
    masks = np.frombuffer(grammar.bitmask, np.int32).reshape(len(places), -1)
    lines = np.full((ends[-1], masks.shape[1]), -1, np.int32)
    lines[places] = masks
    return lines
