"""An engine without a model: a byte tokenizer, and an executor whose tokens come from a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tokenizers

from octavo.config import (
    CacheConfig,
    LoadConfig,
    ModelConfig,
    ObservabilityConfig,
    OctavoConfig,
    ParallelConfig,
    SchedulerConfig,
)
from octavo.engine.llm_engine import LLMEngine
from octavo.engine.startup import start_core
from octavo.executor.interface import Executor
from octavo.tokenizers.parts import TokenizerParts
from octavo.tokenizers.pieces import BYTE_OF_CHARACTER
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.kv_spec import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from octavo.types.messages import PackedLogprobs
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import GrammarOutput, ModelRunnerOutput, SchedulerOutput

NUM_BYTES = 256
EOS, EXTRA_EOS, TURN = 256, 257, 258
VOCAB_SIZE = 260  # one more than the tokenizer knows: logits are wider than vocabularies in real checkpoints
CHAT_TEMPLATE = (
    "{% for message in messages %}<turn>{{ message['role'] }}:{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant:{% endif %}"
)

# what the model says next: (prompt ids, output ids so far, seed) -> token id
NextToken = Callable[[Sequence[int], Sequence[int], int], int]


def byte_tokenizer(beginning: int | None = None) -> Tokenizer:
    """A real tokenizer of 256 byte tokens (id = byte) and three special tokens; one may begin every text."""
    vocabulary = dict(BYTE_OF_CHARACTER.items())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<extra_eos>", "<turn>"])
    if beginning is not None:
        token = backend.id_to_token(beginning)
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            f"{token} $A", special_tokens=[(token, beginning)]
        )
    parts = TokenizerParts(
        backend,
        bos_token_id=beginning,
        eos_token_id=EOS,
        end_of_generation_ids=(EOS,),
        chat_templates={"default": CHAT_TEMPLATE},
    )
    return Tokenizer(parts, "bytes")


def says(text: str | bytes | Sequence[int], then: int = EOS) -> NextToken:
    """A model that says these tokens and then `then` for ever."""
    token_ids = list(text.encode() if isinstance(text, str) else text)
    return lambda prompt, output, seed: token_ids[len(output)] if len(output) < len(token_ids) else then


def mixes(prompt: Sequence[int], output: Sequence[int], seed: int) -> int:
    """A model whose lower-case letters depend on everything before them and on the seed."""
    state = hash((tuple(prompt), tuple(output), seed))
    return ord("a") + state % 26


@dataclass
class _Row:
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    params: SamplingParams
    seed: int


@dataclass
class FakeExecutor(Executor):
    """Keeps rows as a worker does, and takes tokens from `next_token`.

    before_execute: called with the step before anything changes; may raise
    failing: request id prefix -> error text, reported as that request's failure
    """

    next_token: NextToken = mixes
    kv_bytes: int = 2**20
    before_execute: Callable[[SchedulerOutput], None] = lambda step: None
    before_sample: Callable[[SchedulerOutput], None] = lambda step: None
    failing: Mapping[str, str] = field(default_factory=dict)
    rows: dict[str, _Row] = field(default_factory=dict)
    steps: list[SchedulerOutput] = field(default_factory=list)
    plan: KVCacheConfig | None = None
    max_model_len: int = 0
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    is_shut_down: bool = False

    def collective_rpc(self, method, timeout_s=None, args=(), kwargs=None):
        self.calls.append((method, timeout_s, tuple(args), kwargs))
        return [method(self, *args, **(kwargs or {})) if callable(method) else method]

    def get_kv_cache_specs(self) -> list[Mapping[str, KVCacheSpec]]:
        return [{"layer.0": FullAttentionSpec(block_size=4, num_kv_heads=1, head_dim=8)}]  # 256 bytes a block

    def determine_available_memory(self) -> list[int]:
        return [self.kv_bytes]

    def initialize_from_config(self, kv_cache_configs: Sequence[KVCacheConfig], max_model_len: int) -> None:
        self.plan, self.max_model_len = kv_cache_configs[0], max_model_len

    def execute_model(self, step: SchedulerOutput) -> Future[ModelRunnerOutput | None]:
        self.before_execute(step)
        self.steps.append(step)
        for request_id in (*step.finished_request_ids, *step.preempted_request_ids):
            self.rows.pop(request_id, None)
        for new in step.scheduled_new_requests:
            assert new.request_id not in self.rows, "a request that comes back has given up its row"
            self.rows[new.request_id] = _Row(
                list(new.token_ids), new.num_prompt_tokens, new.num_computed_tokens, new.sampling_params, new.seed
            )
        future: Future[ModelRunnerOutput | None] = Future()
        future.set_result(None if step.total_num_scheduled_tokens else ModelRunnerOutput())
        return future

    def sample_tokens(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        step = self.steps[-1]
        self.before_sample(step)
        output = ModelRunnerOutput()
        for request_id, num_scheduled in step.num_scheduled_tokens.items():
            row = self.rows[request_id]
            row.num_computed_tokens += num_scheduled
            if row.num_computed_tokens < len(row.token_ids):
                continue
            self._sample(request_id, row, output)
        return output

    def _sample(self, request_id: str, row: _Row, output: ModelRunnerOutput) -> None:
        prompt, generated = row.token_ids[: row.num_prompt_tokens], row.token_ids[row.num_prompt_tokens :]
        for prefix, error in self.failing.items():
            if request_id.startswith(prefix):
                output.failures[request_id] = error
                return
        token_id = self.next_token(prompt, generated, row.seed)
        output.sampled_token_ids[request_id] = [token_id]
        if row.params.num_logprobs is not None:
            output.logprobs[request_id] = fake_logprobs([token_id], row.params.num_logprobs)
        if row.params.prompt_logprobs is not None and not generated:
            output.prompt_logprobs[request_id] = fake_logprobs(prompt[1:], row.params.prompt_logprobs)
        row.token_ids.append(token_id)

    def check_health(self) -> None:
        return None

    def shutdown(self) -> None:
        self.is_shut_down = True


def fake_logprobs(token_ids: Sequence[int], num_top: int) -> PackedLogprobs:
    """The token at rank 2 with -1, and ids 65, 66, ... as the top ones with -0.5, -1.5, ..."""
    columns = [[token_id, *range(65, 65 + num_top)] for token_id in token_ids]
    values = [[-1.0, *(-0.5 - i for i in range(num_top))] for _ in token_ids]
    return PackedLogprobs(
        num_positions=len(token_ids),
        num_candidates=1 + num_top,
        token_ids=np.array(columns, "<i4").tobytes(),
        logprobs=np.array(values, "<f4").tobytes(),
        ranks=np.full(len(token_ids), 2, "<i4").tobytes(),
    )


def fake_config(**changes: Any) -> OctavoConfig:
    """A small engine; changes name fields of ModelConfig, CacheConfig or SchedulerConfig."""
    max_model_len = changes.pop("max_model_len", 64)
    model = ModelConfig(
        model="fake",
        served_model_name="fake",
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        seed=0,
        eos_token_ids=(EOS, EXTRA_EOS),
    )
    scheduler = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=8, max_model_len=max_model_len)
    cache = CacheConfig(block_size=4)
    parts = []
    for part in (model, scheduler, cache):
        own = {name: changes.pop(name) for name in list(changes) if name in part.__dataclass_fields__}
        parts.append(replace(part, **own))
    assert not changes, f"no such config fields: {changes}"
    return OctavoConfig(parts[0], parts[2], parts[1], ParallelConfig(), LoadConfig(), ObservabilityConfig())


@dataclass
class FakeEngine:
    """An LLMEngine and the parts behind it."""

    engine: LLMEngine
    executor: FakeExecutor

    @property
    def scheduler(self) -> Any:
        return self.engine.engine_core.engine_core.scheduler

    def run(self) -> dict[str, list[Any]]:
        """Step to the end; return all outputs by request id."""
        outputs: dict[str, list[Any]] = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                outputs.setdefault(output.request_id, []).append(output)
        return outputs

    def complete(self, prompt: object = "hi", **params: Any) -> Any:
        """Run one request to its end; return its last output."""
        self.engine.add_request("r", prompt, SamplingParams(**params))
        return self.run()["r"][-1]


def fake_engine(
    next_token: NextToken = mixes,
    *,
    tokenizer: Tokenizer | bool | None = True,
    kv_bytes: int = 2**20,
    executor_class: type[FakeExecutor] = FakeExecutor,
    **changes: Any,
) -> FakeEngine:
    """Start an engine on a FakeExecutor. tokenizer: True for the byte tokenizer."""
    executor = executor_class(next_token, kv_bytes)
    started = start_core(fake_config(**changes), executor)
    chosen = byte_tokenizer() if tokenizer is True else tokenizer or None
    return FakeEngine(LLMEngine.from_started(started, chosen), executor)
