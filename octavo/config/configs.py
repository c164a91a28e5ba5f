"""The frozen sub-configs. Every value is final: no `None` means "choose"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.config.lora import LoRAConfig
from octavo.config.pooling import PoolingConfig
from octavo.config.speculative import SpeculativeConfig

SchedulingPolicy = Literal["fcfs", "priority"]
# What quantises a float checkpoint while it loads.
QuantizationMethod = Literal["int8", "int4"]
# What a checkpoint may be quantised with already; vLLM's names.
QUANTIZATION_METHODS = ("int8", "int4", "gguf", "gptq", "awq", "compressed-tensors", "mxfp4")
LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


@dataclass(frozen=True)
class ModelConfig:
    """The model that is served.

    vocab_size: the width of the logits, against which every token id is validated
    default_sampling_params: fields taken from generation_config.json (or the user's override)
    max_tokens_limit: no request of a server gets more tokens; only who starts the engine sets it, no model's own file
    eos_token_ids: every end-of-sequence id of the checkpoint that the model can sample; the tokenizer's own first
    logits_processors: classes of custom ones (octavo.sampling.custom_processors.LogitsProcessor)
    fit_max_model_len: max_model_len is an upper bound; the start lowers it to what the KV cache can hold
    pooling: None for a model that generates
    """

    model: str
    served_model_name: str
    max_model_len: int
    vocab_size: int
    seed: int
    eos_token_ids: tuple[int, ...]
    fit_max_model_len: bool = False
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    enforce_eager: bool = False
    default_sampling_params: Mapping[str, object] = field(default_factory=dict)
    max_tokens_limit: int | None = None
    logits_processors: Sequence[type[Any]] = ()
    pooling: PoolingConfig | None = None


@dataclass(frozen=True)
class CacheConfig:
    """The KV cache.

    The byte budget of one worker's KV tensors is memory_bytes if given; else, if memory_utilization is given, that
    share of the machine's memory less what the process already holds; else memory_share of what is free once weights
    are loaded and a step was profiled.

    block_size: tokens of a block, of which each of several ranks keeps some under decode context parallelism
    """

    block_size: int
    memory_bytes: int | None = None
    memory_utilization: float | None = None
    memory_share: float = 0.4
    dtype: str = "float32"
    enable_prefix_caching: bool = True
    num_blocks_override: int | None = None
    watermark: float = 0.0  # share of blocks kept free when a waiting request is admitted
    enable_hybrid: bool = True  # False: sliding-window layers are stored like full ones
    enable_kv_events: bool = False


@dataclass(frozen=True)
class SchedulerConfig:
    """Budgets and policy of one step.

    long_prefill_token_threshold: at most this many tokens of one prompt a step while others wait; 0 = no cap
    max_num_partial_prefills: prompts that may be partly computed at the same time
    max_long_partial_prefills: of these, how many may be longer than the threshold
    reserve_full_sequence: admit a prompt only if its whole KV fits now
    num_batches_in_flight: steps that a pipeline works on at the same time, one for each of its stages
    async_scheduling: a step is scheduled while the one before is computed, before that one's tokens are known
    max_loras: different LoRA adapters in one step
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int = 8
    max_long_partial_prefills: int = 1
    policy: SchedulingPolicy = "fcfs"
    reserve_full_sequence: bool = True
    num_lookahead_tokens: int = 0
    num_batches_in_flight: int = 1
    async_scheduling: bool = False
    max_loras: int = 0


@dataclass(frozen=True)
class ParallelConfig:
    """How many processes and in what arrangement.

    distributed_executor_backend: uni, mp, ray, external_launcher, or module:Class of an Executor
    decode_context_parallel_size: tensor-parallel ranks that share the keys and values of a sequence, by token;
    cp_kv_cache_interleave_size: of which each in turn gets so many tokens in a row
    data_parallel_size_local: engine replicas of this machine, which share its cores and memory
    num_replicas, data_parallel_start_rank: of the data_parallel_size engine replicas, those of this front end: how
        many, and the rank of the first
    data_parallel_prefix_affinity: a prompt goes to the replica that has its beginning, unless that is overloaded
    worker_cls, worker_extension_cls: module.Class
    step_timeout_s: a worker that takes longer for a step hangs; None: it may take any time
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    cp_kv_cache_interleave_size: int = 1
    data_parallel_size: int = 1
    data_parallel_size_local: int = 1
    num_replicas: int = 1
    data_parallel_start_rank: int = 0
    data_parallel_prefix_affinity: bool = False
    distributed_executor_backend: str = "uni"
    worker_cls: str | None = None
    worker_extension_cls: str | None = None
    step_timeout_s: float | None = None

    @property
    def world_size(self) -> int:
        """Workers of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def output_rank(self) -> int:
        """The worker whose results count: the first of the last pipeline stage."""
        return self.world_size - self.tensor_parallel_size


@dataclass(frozen=True)
class LoadConfig:
    """How weights are read and kept.

    load_format: auto, safetensors, gguf or dummy
    quantization: quantise float matrices while loading
    exact: dequantise quantised matrices to float32 and compute in float32; else the inputs of quantised matrices are
        rounded to 8 bits
    """

    load_format: str = "auto"
    quantization: QuantizationMethod | None = None
    exact: bool = False


@dataclass(frozen=True)
class ObservabilityConfig:
    """What is counted and logged. otlp_traces_endpoint: where spans of requests go, or None."""

    log_stats: bool = True
    otlp_traces_endpoint: str | None = None


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """How grammars constrain texts, where a request does not say it.

    backend: guidance or xgrammar
    disable_any_whitespace: JSON is written without white space
    disable_additional_properties: objects whose schema does not speak of further properties have none
    reasoning_parser: name of the parser that tells reasoning from answers; "" for none
    enable_in_reasoning: reasoning must follow the grammar too
    """

    backend: str = "guidance"
    disable_any_whitespace: bool = True
    disable_additional_properties: bool = False
    reasoning_parser: str = ""
    enable_in_reasoning: bool = False


@dataclass(frozen=True)
class OctavoConfig:
    """The bundle that `resolve` returns; only the engine holds it whole."""

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    parallel: ParallelConfig
    load: LoadConfig
    observability: ObservabilityConfig
    structured_outputs: StructuredOutputsConfig = StructuredOutputsConfig()
    speculative: SpeculativeConfig | None = None
    lora: LoRAConfig | None = None

    @property
    def max_running_sequences(self) -> int:
        """How many sequences all replicas of a front end together run at once."""
        return self.scheduler.max_num_seqs * self.parallel.num_replicas
