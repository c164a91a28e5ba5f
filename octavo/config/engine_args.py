"""EngineArgs: what the user wishes, under vLLM's names. `None` means "you choose"; `engine/resolve.py` chooses.

Options of vLLM whose capability is not built here are known by name (`UNSUPPORTED_OPTIONS`): their neutral value is
accepted, anything else is refused with the reason. An unknown name is an error that suggests the closest known one.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

from octavo.config.configs import QUANTIZATION_METHODS, LogprobsMode, SchedulingPolicy
from octavo.config.option_flags import add_option_arguments, given_options
from octavo.errors import ConfigError, UnsupportedError
from octavo.utils.absence import holds_nothing
from octavo.utils.names import closest_names

Unbuilt: TypeAlias = (
    "Mapping[str, tuple[tuple[Any, ...], str]]"  # option -> values that ask for nothing, what is missing
)


def _option(default: Any, help: str, choices: Sequence[str] | None = None, in_cli: bool = True) -> Any:
    metadata = {"help": help, "choices": choices, "in_cli": in_cli}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


class _KnownOptions(type):
    """EngineArgs(…) takes neutral values of options that are not built, and answers a typo with the nearest name."""

    def __call__(cls, *values: Any, **options: Any) -> Any:
        return super().__call__(*values, **_built(cls, options))


@dataclass
class EngineArgs(metaclass=_KnownOptions):
    """Options of an engine; each field's help text is in its metadata and on the command line.

    Options that are unknown or ask for what is not built raise ConfigError or UnsupportedError.
    """

    model: str = _option("smollm2-135m-instruct", "catalog name, folder, .gguf file, hub id or hub id:QUANT")
    runner: str = _option(
        "auto", "generate or pool (embeddings, scores); auto: as the model is made for", ("auto", "generate", "pooling")
    )
    convert: str = _option("auto", "what a pooling model must be for", ("auto", "none", "embed", "classify"))
    task: str | None = _option(
        None,
        "older name: generate, or what a pooling model is for",
        ("auto", "generate", "embed", "embedding", "classify", "score", "reward"),
    )
    pooler_config: dict[str, Any] | None = _option(
        None,
        "JSON object: pooling_type or seq_pooling_type and tok_pooling_type, use_activation, dimensions, logit_mean, "
        "logit_sigma, step_tag_id, returned_token_ids",
    )
    tokenizer: str | None = _option(None, "folder or file of another tokenizer than the model's own")
    skip_tokenizer_init: bool = _option(False, "load no tokenizer: token ids in, token ids out")
    trust_remote_code: bool = _option(False, "accepted for compatibility; code from a model folder never runs")
    dtype: str = _option(
        "auto",
        "accepted for compatibility: activations are float32, weights are kept as the checkpoint stores them",
        ("auto", "float32", "float", "bfloat16", "float16", "half"),
    )
    seed: int = _option(0, "seed from which requests without a seed get theirs")
    max_model_len: int | str | None = _option(None, "longest sequence; 8k style accepted; -1 or auto: what fits memory")
    revision: str | None = _option(None, "branch, tag or commit of a hub model")
    served_model_name: str | None = _option(None, "name shown in the API instead of the model's")
    hf_overrides: dict[str, Any] = _option({}, "JSON object merged into the model's config.json")
    hf_token: str | None = _option(None, "access token for the hub")
    generation_config: str = _option("auto", "auto: the model's generation_config.json; vllm: ignore it; or a folder")
    override_generation_config: dict[str, Any] = _option({}, "JSON object merged over the generation config")
    max_logprobs: int = _option(20, "largest logprobs a request may ask for; -1: no limit")
    logprobs_mode: str = _option("raw_logprobs", "what logprobs mean", get_args(LogprobsMode))
    logits_processors: list[Any] = _option([], "custom logits processors: module:Class (or classes)")
    enforce_eager: bool = _option(False, "run op by op instead of from the tape")
    compute: str = _option("auto", "exact: float32 arithmetic on dequantised weights", ("auto", "exact"))
    quantization: str | None = _option(
        None, "int8 or int4: quantise a float checkpoint while loading; others: what it must be", QUANTIZATION_METHODS
    )
    load_format: str = _option("auto", "how weights are read", ("auto", "safetensors", "gguf", "dummy"))
    download_dir: str | None = _option(None, "folder for hub downloads")
    use_tqdm_on_load: bool = _option(True, "accepted for compatibility; no progress bar is shown")
    block_size: int | None = _option(None, "tokens per KV cache block (16)")
    gpu_memory_utilization: float | None = _option(None, "share of the machine's memory for weights and KV cache")
    kv_cache_memory_bytes: int | None = _option(None, "bytes for the KV cache; overrides gpu_memory_utilization")
    kv_cache_dtype: str = _option(
        "auto",
        "type of the KV cache; auto: float32 for float32 weights, else float16",
        ("auto", "float32", "float16", "int8"),
    )
    enable_prefix_caching: bool | None = _option(None, "reuse the KV cache of shared prompt prefixes (on)")
    prefix_caching_hash_algo: str = _option("sha256", "hash of cached blocks", ("sha256",))
    num_gpu_blocks_override: int | None = _option(None, "number of KV cache blocks, whatever the memory (for tests)")
    disable_hybrid_kv_cache_manager: bool = _option(False, "store sliding-window layers like full ones")
    watermark: float = _option(0.0, "share of blocks kept free when a waiting request is admitted")
    max_num_batched_tokens: int | None = _option(None, "token budget of one step (1024)")
    max_num_seqs: int | None = _option(None, "requests that run at the same time (256)")
    enable_chunked_prefill: bool | None = _option(None, "compute long prompts in pieces (on)")
    long_prefill_token_threshold: int | None = _option(
        None, "tokens of one prompt per step while others wait; 0: no cap (a quarter of the token budget)"
    )
    max_num_partial_prefills: int | None = _option(None, "prompts partly computed at the same time (8)")
    max_long_partial_prefills: int | None = _option(None, "of these, prompts over the threshold (1)")
    scheduling_policy: str = _option("fcfs", "order of requests", get_args(SchedulingPolicy))
    async_scheduling: bool | None = _option(
        None, "schedule a step while workers compute the one before (on, where workers are processes of their own)"
    )
    scheduler_reserve_full_isl: bool = _option(True, "admit a prompt only if all of it fits the KV cache")
    tensor_parallel_size: int = _option(1, "processes that share each layer")
    pipeline_parallel_size: int = _option(1, "processes that share the layers")
    data_parallel_size: int = _option(1, "replicas of the engine, here and behind other front ends")
    data_parallel_rank: int | None = _option(None, "this server runs the one replica of this rank (external balancing)")
    data_parallel_external_lb: bool = _option(False, "external balancing; data_parallel_rank says the same")
    data_parallel_hybrid_lb: bool = _option(
        False, "this server runs data_parallel_size_local replicas; something outside balances between servers"
    )
    data_parallel_size_local: int | None = _option(None, "replicas of this machine (all)")
    data_parallel_start_rank: int | None = _option(None, "rank of this machine's first replica (0)")
    data_parallel_address: str | None = _option(
        None, "address of the front end's machine at which replicas of other machines (--headless) connect"
    )
    data_parallel_rpc_port: int | None = _option(None, "its port (29550)")
    data_parallel_backend: str = _option(
        "mp",
        "replicas are processes of this machine and of hosts (--headless), or actors of a Ray cluster",
        ("mp", "ray"),
    )
    data_parallel_prefix_affinity: bool = _option(
        False, "send a prompt to the replica that has computed its beginning, unless others are much less busy"
    )
    decode_context_parallel_size: int = _option(1, "tensor-parallel processes that share the KV cache of a sequence")
    cp_kv_cache_interleave_size: int | None = _option(None, "tokens in a row that each of these keeps (1)")
    dcp_kv_cache_interleave_size: int | None = _option(None, "older name of cp_kv_cache_interleave_size")
    prefill_context_parallel_size: int = _option(1, "processes that share a prompt")
    distributed_executor_backend: str | type[Any] | None = _option(
        None, "how workers run: uni, mp, ray, external_launcher or module.Class (uni for one worker, mp for several)"
    )
    worker_cls: str | None = _option(None, "module.Class of another worker; auto: Octavo's")
    worker_extension_cls: str | None = _option(None, "module.Class mixed into the worker for collective_rpc")
    kv_events_config: dict[str, Any] | None = _option(None, 'JSON object; {"enable_kv_cache_events": true}')
    structured_outputs_config: dict[str, Any] | None = _option(
        None,
        "JSON object: backend (auto, guidance, xgrammar), disable_any_whitespace (true), disable_additional_properties "
        "(false), reasoning_parser, enable_in_reasoning (false)",
    )
    speculative_config: dict[str, Any] | None = _option(
        None,
        "JSON object: method (ngram, suffix, draft_model, medusa, eagle, eagle3, mtp), model, num_speculative_tokens, "
        "prompt_lookup_min and prompt_lookup_max (5), num_speculative_tokens_per_batch_size, suffix_decoding_…; "
        "see docs/speculative.md",
    )
    spec_method: str | None = _option(None, "method of speculative_config")
    spec_model: str | None = _option(None, "model of speculative_config")
    spec_tokens: int | None = _option(None, "num_speculative_tokens of speculative_config")
    reasoning_parser: str | None = _option(
        None, "format of the model's reasoning; auto (the default): as the chat template shows; none: no parsing"
    )
    reasoning_parser_plugin: str | None = _option(None, "Python file that registers further formats of reasoning")
    enable_lora: bool = _option(False, "take LoRA adapters")
    max_loras: int | None = _option(None, "different adapters that requests may use in one step (1)")
    max_lora_rank: int | None = _option(None, "largest rank of an adapter (16)")
    max_cpu_loras: int | None = _option(None, "adapters kept in memory (max_loras)")
    lora_dtype: str = _option(
        "auto",
        "type in which adapters are kept; auto: int8 for quantised layers, else that of their files",
        ("auto", "int8", "float32", "bfloat16", "float16"),
    )
    disable_log_stats: bool = _option(False, "count nothing")
    otlp_traces_endpoint: str | None = _option(
        None, "OpenTelemetry collector that gets a span per request, grpc://host:4317 style (needs octavo[otel])"
    )
    step_timeout_s: float = _option(
        300.0, "seconds without a sign of life after which an engine process that has work is replaced; 0: never"
    )

    @staticmethod
    def unbuilt_options() -> Unbuilt:
        """Return the options that are known by name only."""
        return UNSUPPORTED_OPTIONS

    @classmethod
    def from_kwargs(cls, **options: Any) -> EngineArgs:
        """Build from keyword arguments that no type checker sees."""
        return cls(**options)

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each option to a program's own parser, with the options' defaults; return the parser."""
        add_option_arguments(parser, "engine", "what is not given is chosen by Octavo", cls)
        defaults = cls()
        names = [field.name for field in dataclasses.fields(cls) if field.metadata["in_cli"]]
        parser.set_defaults(**{name: getattr(defaults, name) for name in names})
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """Build from what a parser with these flags has parsed; the program's own flags are left alone."""
        return cls.from_kwargs(**given_options(vars(args), cls, cls.unbuilt_options()))


# vLLM option -> (values that ask for nothing, what is missing). Accepted when neutral, refused otherwise.
UNSUPPORTED_OPTIONS: Unbuilt = {
    "model_impl": (("auto", "vllm"), "models run by Octavo's own declarations"),
    "tokenizer_mode": (("auto", "hf"), "tokenizers load from tokenizer.json or GGUF"),
    "tokenizer_revision": ((None,), "use revision"),
    "code_revision": ((None,), "code from a model folder never runs"),
    "config_format": (("auto", "hf"), "config.json and GGUF are read"),
    "quantization_config": ((None,), "a checkpoint says itself how it is quantised"),
    "cpu_offload_gb": ((0, 0.0), "weights are in main memory already"),
    "disable_custom_all_reduce": ((False, True), ""),
    "mm_processor_kwargs": ((None, {}), "multimodal input is not built"),
    "limit_mm_per_prompt": ((None, {}), "multimodal input is not built"),
    "profiler_config": ((None,), "profiling is not built"),
    "collect_detailed_traces": ((None, ""), "a request's span tells where its time went; modules have none"),
    "attention_config": ((None,), "there is one attention backend"),
    "attention_backend": ((None,), "there is one attention backend"),
    "compilation_config": ((None, {}, 0), "there is nothing to compile"),
    "enable_sleep_mode": ((False, True), ""),  # AsyncLLM and the server can always sleep
    "enable_prompt_embeds": ((False,), "prompt embeddings are not built"),
    "enable_expert_parallel": ((False, True), ""),  # ranks have a share of every expert in any case
    "kv_transfer_config": ((None,), "KV transfer is not built"),
    "ec_transfer_config": ((None,), "multimodal input is not built"),
    "disable_sliding_window": ((False,), "sliding windows are always honoured"),
    "max_num_queued_reqs": ((None,), "admission limits come with the server"),
    "max_num_queued_tokens": ((None,), "admission limits come with the server"),
    "hf_config_path": ((None,), "the configuration is read from the model's folder"),
    "io_processor_plugin": ((None,), "plug-ins for inputs are not built"),
    "renderer_num_workers": ((1,), "one process renders prompts"),
    "safetensors_load_strategy": ((None, "lazy"), "weights are mapped, not read ahead"),
    "model_loader_extra_config": ((None, {}), "loaders take no options"),
    "kv_cache_dtype_skip_layers": ((None, []), "all layers store the same type"),
    "kv_sharing_fast_prefill": ((False,), "sharing the KV cache between layers is not built"),
    "kv_offloading_size": ((None,), "the KV cache is in main memory already"),
    "max_num_scheduled_tokens": ((None,), "use max_num_batched_tokens"),
    "disable_chunked_mm_input": ((False,), "multimodal input is not built"),
    "stream_interval": ((1,), "every token is passed on; clients that are slow get several at once"),
    "scheduler_cls": ((None,), "other schedulers cannot be plugged in"),
    "data_parallel_multi_port_external_lb": ((False,), "start one server for each rank, with data_parallel_rank"),
    "enable_eplb": ((False,), "ranks share the features of every expert, so that there is nothing to balance"),
    "enable_dbo": ((False,), "there is one batch at a time"),
    "nnodes": ((1,), "engines on several machines run with distributed_executor_backend ray or external_launcher"),
    "node_rank": ((0,), "engines on several machines run with distributed_executor_backend ray or external_launcher"),
    "master_addr": ((None, "127.0.0.1"), "torchrun and Ray say where the ranks meet"),
    "master_port": ((None, 29501), "torchrun and Ray say where the ranks meet"),
    "lora_target_modules": ((None,), "adapters say themselves which modules they change"),
    "default_mm_loras": ((None,), "multimodal input is not built"),
    "fully_sharded_loras": ((False,), "adapters are computed by one worker"),
    "language_model_only": ((False, True), ""),
    "mm_processor_cache_gb": ((None, 0, 4), "multimodal input is not built"),
    "skip_mm_profiling": ((False, True), ""),
    "offload_backend": ((None, "auto"), "weights are in main memory already"),
    "reasoning_config": ((None,), "thinking_token_budget needs none"),
    "optimization_level": ((None, 0, 1, 2, 3), "there is nothing to compile"),
    "performance_mode": ((None, "balanced"), "set max_num_batched_tokens and max_num_seqs"),
    "cudagraph_capture_sizes": ((None, []), "there are no GPUs"),
    "max_cudagraph_capture_size": ((None, 0), "there are no GPUs"),
    "enable_log_requests": ((False,), "the server logs requests"),
    "weight_transfer_config": ((None,), "the transfer of weights is not built"),
    "additional_config": ((None, {}), "no plug-in platform would read it"),
    "aggregate_engine_logging": ((False, True), ""),  # one line tells of all replicas in any case
    "all2all_backend": ((None, "allgather_reducescatter"), "ranks have a share of every expert"),
    "allow_deprecated_quantization": ((False, True), ""),
    "allowed_local_media_path": (("",), "multimodal input is not built"),
    "allowed_media_domains": ((None,), "multimodal input is not built"),
    "cudagraph_metrics": ((False,), "there are no GPUs"),
    "custom_histogram_buckets": ((None,), "histograms have vLLM's buckets"),
    "device_ids": ((None,), "there are no GPUs"),
    "diffusion_config": ((None,), "diffusion models are not built"),
    "distributed_timeout_seconds": ((None,), "use step_timeout_s"),
    "ec_manager_config": ((None,), "multimodal input is not built"),
    "enable_elastic_ep": ((False,), "ranks have a share of every expert"),
    "enable_logging_iteration_details": ((False,), "use OCTAVO_LOG_LEVEL=debug"),
    "enable_mfu_metrics": ((False,), "operations are not counted"),
    "enable_mm_embeds": ((False,), "multimodal input is not built"),
    "enable_trace_replay": ((False,), "results are not replayed"),
    "fault_tolerance": ((None, False), "engine processes that die are replaced in any case"),
    "ignore_patterns": ((None, "original/**/*"), "only the files that are needed are fetched"),
    "interleave_mm_strings": ((False,), "multimodal input is not built"),
    "kernel_config": ((None,), "there is one kernel for each operation"),
    "kv_cache_metrics": ((False,), "the lives of blocks are not measured"),
    "kv_cache_metrics_sample": ((None, 0.01), "the lives of blocks are not measured"),
    "kv_offloading_backend": ((None, "native"), "the KV cache is in main memory already"),
    "linear_backend": ((None, "auto"), "there is one kernel for each operation"),
    "mamba_block_size": ((None,), "state-space models are not built"),
    "mamba_cache_dtype": ((None, "auto"), "state-space models are not built"),
    "mamba_cache_mode": ((None, "none"), "state-space models are not built"),
    "mamba_ssm_cache_dtype": ((None, "auto"), "state-space models are not built"),
    "max_num_active_seqs": ((None,), "use max_num_seqs"),
    "mm_encoder_tp_mode": ((None, "weights"), "multimodal input is not built"),
    "mm_processor_cache_type": ((None, "lru"), "multimodal input is not built"),
    "moe_backend": ((None, "auto"), "there is one kernel for each operation"),
    "numa_bind": ((False,), "use numactl"),
    "offload_group_size": ((0,), "weights are in main memory already"),
    "offload_num_in_group": ((1,), "weights are in main memory already"),
    "offload_prefetch_step": ((1,), "weights are in main memory already"),
    "per_request_spec_decode_metrics": ((None, "none"), "guesses are counted for the engine"),
    "prefill_schedule_interval": ((1,), "prompts may begin in every step"),
    "prefix_cache_retention_interval": ((0,), "what was used least recently goes first"),
    "prefix_match_unit": ((None,), "prefixes match by block"),
    "pt_load_map_location": ((None, "cpu"), "pickled weights are not read"),
    "return_sampling_mask": ((False,), "masks are not returned"),
    "show_hidden_metrics_for_version": ((None,), "no metrics are hidden"),
    "swa_bounded_replay": ((True, False), ""),
    "use_fp64_gumbel": ((False, True), ""),
    "video_pruning_rate": ((None,), "multimodal input is not built"),
    "watermark_config": ((None,), "texts cannot be marked"),
}

# Options of older versions of vLLM -> what to do instead.
FORMER_OPTIONS: Mapping[str, str] = {
    "device": "leave it out: models run on the CPU",
    "disable_async_output_proc": "leave it out",
    "guided_decoding_backend": "use structured_outputs_config={'backend': …}",
    "max_seq_len_to_capture": "leave it out: steps of every size run from a tape",
    "num_lookahead_slots": "leave it out: speculative_config says it",
    "num_scheduler_steps": "leave it out: steps are scheduled one by one",
    "num_speculative_tokens": "use speculative_config",
    "override_pooler_config": "use pooler_config",
    "preemption_mode": "leave it out: preempted requests are computed again",
    "rope_scaling": "use hf_overrides={'rope_parameters': …}",
    "rope_theta": "use hf_overrides={'rope_parameters': …}",
    "speculative_model": "use speculative_config",
    "swap_space": "leave it out: preempted requests are computed again",
    "use_v2_block_manager": "leave it out",
}


def _built(options_class: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of the class; the others must ask for nothing."""
    known = {field.name for field in dataclasses.fields(options_class)}
    for name, value in options.items():
        if name not in known:
            _refuse_unless_neutral(name, value, known)
    return {name: _named(value) for name, value in options.items() if name in known}


def _named(value: Any) -> Any:
    """Return a dtype of torch, which need not be there, by its name."""
    kind = type(value)
    return str(value).removeprefix("torch.") if (kind.__module__, kind.__name__) == ("torch", "dtype") else value


def _refuse_unless_neutral(name: str, value: Any, known: set[str]) -> None:
    if name not in UNSUPPORTED_OPTIONS:
        former = FORMER_OPTIONS.get(name)
        hint = f"; {former}" if former else closest_names(name, (*known, *UNSUPPORTED_OPTIONS))
        raise ConfigError(f"unknown engine option {name!r}{hint}")
    neutral, reason = UNSUPPORTED_OPTIONS[name]
    if not holds_nothing(value) and not any(
        type(value) is type(accepted) and value == accepted for accepted in neutral
    ):
        raise UnsupportedError(f"{name}={value!r} is not supported: {reason}; leave it at {neutral[0]!r}")
