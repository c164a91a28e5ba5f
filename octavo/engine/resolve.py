"""The only place where defaults are decided: user's wishes + checkpoint facts + machine facts -> OctavoConfig.

Each rule decides one thing and logs what it chose and why when the user left it open.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from octavo.config import (
    CacheConfig,
    EngineArgs,
    LoadConfig,
    ModelConfig,
    ObservabilityConfig,
    OctavoConfig,
    ParallelConfig,
    SchedulerConfig,
)
from octavo.config.configs import LogprobsMode, QuantizationMethod
from octavo.config.lora import LoRAConfig
from octavo.config.option_types import canonical_types
from octavo.config.pooling import PoolingConfig
from octavo.config.speculative import SpeculativeConfig
from octavo.engine.adapters import check_lora, lora_config
from octavo.engine.grammars import structured_outputs_config
from octavo.engine.parallel import async_scheduling, check_model_is_divisible, parallel_config
from octavo.engine.pooling_config import pooling_config, with_classifier_tokens
from octavo.engine.speculation import check_speculation, speculative_config
from octavo.errors import CheckpointError, ConfigError, InvalidRequestError, UnsupportedError
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.hf_config import HFConfig
from octavo.loader.local_files import read_json_object
from octavo.loader.resolve import open_checkpoint
from octavo.log import get_logger
from octavo.metrics.tracing import check_tracing
from octavo.models.interface import ModelFacts
from octavo.models.pooling_registry import describe_pooling
from octavo.models.registry import describe
from octavo.quantization.open import quantization_of
from octavo.sampling.custom_processors import load_logits_processor
from octavo.tokenizers.tokenizer import Tokenizer, load_tokenizer
from octavo.types.sampling_params import SamplingParams
from octavo.utils.numbers import whole_number

logger = get_logger(__name__)

_DEFAULT_BLOCK_SIZE = 16
_MAX_BLOCK_SIZE = 2**16  # blocks far longer than any sequence only waste memory
_DEFAULT_MAX_NUM_SEQS = 256
_MAX_NUM_SEQS = 2**16  # every row costs memory, busy or not
_DEFAULT_MAX_NUM_BATCHED_TOKENS = 1024  # matrix products reach full speed far below; larger steps only delay others
_SAME_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_SAMPLING_DEFAULTS = {**{name: name for name in _SAME_NAMES}, "max_new_tokens": "max_tokens"}


@dataclass(frozen=True)
class ResolvedEngine:
    """Everything an engine starts from. tokenizer is None with skip_tokenizer_init."""

    config: OctavoConfig
    checkpoint: Checkpoint
    facts: ModelFacts
    tokenizer: Tokenizer | None


def resolve(args: EngineArgs) -> ResolvedEngine:
    """Open the checkpoint and decide every option; raises ConfigError, UnsupportedError or CheckpointError."""
    if callable(args.hf_overrides):
        raise UnsupportedError("hf_overrides by a function is not supported; give a mapping")
    args = canonical_types(args)
    _check_choices(args)
    load = _load_config(args)
    checkpoint = open_checkpoint(
        args.model, load, revision=args.revision, download_dir=args.download_dir, hf_token=args.hf_token
    )
    checkpoint = _override_config(checkpoint, args.hf_overrides)
    rounds = _rounds_activations(args.quantization, checkpoint, load)
    checkpoint = with_classifier_tokens(checkpoint, args.tokenizer)
    pooling = pooling_config(args, checkpoint)
    if pooling is not None and not pooling.computes_in_pieces:
        args = dataclasses.replace(args, enable_chunked_prefill=False, enable_prefix_caching=False)
    facts = describe(checkpoint.config) if pooling is None else describe_pooling(checkpoint.config).model
    tokenizer = None if args.skip_tokenizer_init else load_tokenizer(checkpoint, tokenizer_path=args.tokenizer)
    max_model_len, fit = _max_model_len(args.max_model_len, facts, pooling)
    model = _model_config(args, checkpoint, facts, tokenizer, max_model_len, fit)
    model = dataclasses.replace(model, pooling=pooling)
    speculative, lora, parallel = speculative_config(args, checkpoint, load), lora_config(args), parallel_config(args)
    config = OctavoConfig(
        model=model,
        cache=_cache_config(args, checkpoint, rounds, parallel),
        scheduler=_scheduler_config(args, max_model_len, speculative, lora, parallel),
        parallel=parallel,
        load=load,
        observability=_observability_config(args),
        structured_outputs=structured_outputs_config(args.structured_outputs_config or {}, args.reasoning_parser),
        speculative=speculative,
        lora=lora,
    )
    check_lora(config)
    check_model_is_divisible(config, checkpoint)
    check_speculation(config, facts, checkpoint)
    logger.info(
        "%s: %s, %d layers, %d positions, vocabulary of %d; steps of up to %d tokens, up to %d requests at a time",
        model.served_model_name,
        facts.architecture,
        facts.num_layers,
        max_model_len,
        facts.vocab_size,
        config.scheduler.max_num_batched_tokens,
        config.scheduler.max_num_seqs,
    )
    return ResolvedEngine(config, checkpoint, facts, tokenizer)


# -- model -------------------------------------------------------------------------------------------------------------


def _check_choices(args: EngineArgs) -> None:
    """Refuse values that are not among a field's choices, wherever they came from."""
    for option in dataclasses.fields(args):
        choices = option.metadata["choices"]
        value = getattr(args, option.name)
        if choices and value is not None and value not in choices:
            raise ConfigError(f"{option.name} must be one of {', '.join(choices)}, got {value!r}")
    if args.dtype in ("bfloat16", "float16", "half"):
        logger.warning("dtype=%s: activations are float32 all the same; 16-bit weights stay as stored", args.dtype)
    if not args.step_timeout_s >= 0:  # also refuses NaN
        raise ConfigError(f"step_timeout_s must be at least 0 (0: no limit), got {args.step_timeout_s}")
    if args.trust_remote_code:
        logger.warning("trust_remote_code has no effect: code from a model folder never runs")


def _load_config(args: EngineArgs) -> LoadConfig:
    online: QuantizationMethod | None = args.quantization if args.quantization in get_args(QuantizationMethod) else None  # type: ignore[assignment]
    return LoadConfig(args.load_format, online, exact=args.compute == "exact")


def _rounds_activations(wish: str | None, checkpoint: Checkpoint, load: LoadConfig) -> bool:
    """Check that the wished quantization fits the checkpoint; log and return how its matrices are multiplied."""
    stored = quantization_of(checkpoint)
    if wish is not None and load.quantization is None and (stored is None or stored.method != wish):
        raise ConfigError(f"quantization={wish!r}, but {checkpoint.name} is {stored or 'not quantised'}; leave it out")
    if load.quantization is not None and stored is not None:
        raise ConfigError(f"quantization={wish!r}, but {checkpoint.name} is quantised already ({stored}); leave it out")
    kind = stored or load.quantization
    if kind is None:
        logger.info("weights: as stored, multiplied in float32")
    elif load.exact:
        logger.info("weights: %s, dequantised to float32 and multiplied in float32 (compute='exact')", kind)
    else:
        logger.info("weights: %s, times activations rounded to 8 bits per group (compute='exact' rounds none)", kind)
    return kind is not None and not load.exact


def _override_config(checkpoint: Checkpoint, overrides: Mapping[str, Any]) -> Checkpoint:
    if not overrides:
        return checkpoint
    values = {**checkpoint.config.values, **overrides}
    return dataclasses.replace(checkpoint, config=HFConfig(values, checkpoint.config.source))


def _max_model_len(wish: int | str | None, facts: ModelFacts, pooling: PoolingConfig | None) -> tuple[int, bool]:
    """Return (max_model_len, whether it is only an upper bound)."""
    length = parse_length(wish) if wish is not None else None
    if length is None:
        longest = pooling.max_text_tokens if pooling is not None else None
        return min(facts.max_position, longest or facts.max_position), True
    if length > facts.max_position:
        raise ConfigError(
            f"max_model_len={length} exceeds the model's {facts.max_position} positions; lower it, or extend the model "
            "with hf_overrides (rope_scaling)"
        )
    return length, False


def parse_length(wish: int | str) -> int | None:
    """Read 4096, "4096", "4k" (4000), "4K" (4096), "1.5m"; -1 and "auto" give None. Raises ConfigError."""
    if wish in (-1, "-1", "auto"):
        return None
    try:
        length = whole_number(str(wish))
    except ValueError:
        length = 0
    # one prompt token and one new token are the least that a request has
    if length < 2 or isinstance(wish, bool):
        raise ConfigError(
            f"max_model_len must be a whole number of at least 2 tokens such as 4096 or 4k, or -1, got {wish!r}"
        )
    return length


def _model_config(
    args: EngineArgs,
    checkpoint: Checkpoint,
    facts: ModelFacts,
    tokenizer: Tokenizer | None,
    max_model_len: int,
    fit: bool,
) -> ModelConfig:
    if args.max_logprobs < -1:
        raise ConfigError(f"max_logprobs must be at least 0, or -1 for no limit, got {args.max_logprobs}")
    logprobs_mode: LogprobsMode = args.logprobs_mode  # type: ignore[assignment]  # checked against its choices
    defaults = _default_sampling_params(args, checkpoint)
    longest = defaults.get("max_tokens")
    is_limit = args.generation_config not in ("auto", "vllm") or "max_new_tokens" in args.override_generation_config
    return ModelConfig(
        model=args.model,
        served_model_name=args.served_model_name or args.model,
        max_model_len=max_model_len,
        vocab_size=facts.vocab_size,
        seed=args.seed,
        eos_token_ids=_eos_token_ids(checkpoint, tokenizer, facts.vocab_size),
        fit_max_model_len=fit,
        max_logprobs=facts.vocab_size if args.max_logprobs == -1 else args.max_logprobs,
        logprobs_mode=logprobs_mode,
        enforce_eager=args.enforce_eager,
        default_sampling_params=defaults,
        max_tokens_limit=longest if is_limit and isinstance(longest, int) else None,
        logits_processors=tuple(map(load_logits_processor, args.logits_processors)),
    )


def _eos_token_ids(checkpoint: Checkpoint, tokenizer: Tokenizer | None, vocab_size: int) -> tuple[int, ...]:
    """Collect end-of-sequence ids: the tokenizer's own first, then the generation config's and the model config's.

    An id beyond the logits (a token that was added without its row) is left out: it is never sampled.
    """
    ids = list(tokenizer.end_of_generation_ids) if tokenizer else []
    for values in (checkpoint.generation_config, checkpoint.config.values):
        declared = values.get("eos_token_id")
        ids += declared if isinstance(declared, list) else [] if declared is None else [declared]
    if not all(isinstance(i, int) for i in ids):
        raise CheckpointError(f"{checkpoint.name}: eos_token_id must be an integer or a list of integers, got {ids!r}")
    return tuple(dict.fromkeys(i for i in ids if 0 <= i < vocab_size))


def _default_sampling_params(args: EngineArgs, checkpoint: Checkpoint) -> dict[str, object]:
    """Take sampling defaults from the generation config, unless told to ignore it; explicit overrides win."""
    if args.generation_config == "auto":
        source: Mapping[str, Any] = checkpoint.generation_config
    elif args.generation_config == "vllm":
        source = {}
    else:
        source = _read_generation_config(Path(args.generation_config))
    unknown = sorted(args.override_generation_config.keys() - _SAMPLING_DEFAULTS.keys())
    if unknown:
        raise ConfigError(
            f"override_generation_config takes {', '.join(_SAMPLING_DEFAULTS)}, got {', '.join(map(repr, unknown))}"
        )
    merged = {**source, **args.override_generation_config}
    defaults = {ours: merged[theirs] for theirs, ours in _SAMPLING_DEFAULTS.items() if merged.get(theirs) is not None}
    try:
        SamplingParams.from_defaults(defaults, {})
    except InvalidRequestError as error:  # else every request without parameters would fail with it
        raise ConfigError(
            f"{checkpoint.name}: the generation config is unusable: {error}; set override_generation_config, or "
            "generation_config='vllm' to ignore the model's"
        ) from error
    if defaults:
        logger.info(
            "default sampling parameters from the generation config: %s (generation_config='vllm' ignores them)",
            ", ".join(f"{name}={value}" for name, value in defaults.items()),
        )
    return defaults


def _read_generation_config(folder: Path) -> dict[str, Any]:
    try:
        return read_json_object(folder / "generation_config.json" if folder.is_dir() else folder)
    except CheckpointError as error:
        raise ConfigError(
            f"generation_config must be auto, vllm or a folder with generation_config.json: {error}"
        ) from error


# -- cache, scheduler, processes ---------------------------------------------------------------------------------------


def _cache_config(
    args: EngineArgs, checkpoint: Checkpoint, rounds_activations: bool, parallel: ParallelConfig
) -> CacheConfig:
    utilization = args.gpu_memory_utilization
    if utilization is not None and not 0 < utilization <= 1:
        raise ConfigError(f"gpu_memory_utilization must be over 0 and at most 1, got {utilization}")
    if not 0 <= args.watermark < 1:
        raise ConfigError(f"watermark must be at least 0 and below 1, got {args.watermark}")
    block_size = _positive("block_size", args.block_size, _DEFAULT_BLOCK_SIZE, _MAX_BLOCK_SIZE)
    if block_size % parallel.cp_kv_cache_interleave_size:
        raise ConfigError(
            f"cp_kv_cache_interleave_size={parallel.cp_kv_cache_interleave_size} does not divide "
            f"block_size={block_size}; what each of several ranks keeps of a block are such pieces"
        )
    return CacheConfig(
        dtype=_cache_dtype(args, checkpoint, rounds_activations),
        block_size=block_size * parallel.decode_context_parallel_size,
        memory_bytes=_optional_positive("kv_cache_memory_bytes", args.kv_cache_memory_bytes),
        memory_utilization=utilization,
        enable_prefix_caching=args.enable_prefix_caching is not False,
        num_blocks_override=_optional_positive("num_gpu_blocks_override", args.num_gpu_blocks_override),
        watermark=args.watermark,
        enable_hybrid=not args.disable_hybrid_kv_cache_manager,
        enable_kv_events=_enable_kv_events(args.kv_events_config or {}),
    )


def _enable_kv_events(options: Mapping[str, Any]) -> bool:
    wish = options.get("enable_kv_cache_events", False)
    if not isinstance(wish, bool):
        raise ConfigError(f"kv_events_config.enable_kv_cache_events must be a bool, got {wish!r}")
    others = sorted(options.keys() - {"enable_kv_cache_events"})
    if others:
        raise UnsupportedError(
            f"kv_events_config.{others[0]} is not supported: events are read in this process (take_kv_events); "
            "give enable_kv_cache_events only"
        )
    return wish


def _cache_dtype(args: EngineArgs, checkpoint: Checkpoint, rounds_activations: bool) -> str:
    """Keys and values are kept as precisely as the weights are: float32 for float32 weights, else float16."""
    if args.kv_cache_dtype != "auto":
        return args.kv_cache_dtype
    stored = checkpoint.config.values.get("dtype", checkpoint.config.values.get("torch_dtype"))
    is_coarse = rounds_activations or stored in ("bfloat16", "float16")
    return "float16" if is_coarse and args.compute != "exact" else "float32"


def _scheduler_config(
    args: EngineArgs,
    max_model_len: int,
    speculative: SpeculativeConfig | None,
    lora: LoRAConfig | None,
    parallel: ParallelConfig,
) -> SchedulerConfig:
    max_num_seqs = _positive("max_num_seqs", args.max_num_seqs, _DEFAULT_MAX_NUM_SEQS, _MAX_NUM_SEQS)
    chunked = args.enable_chunked_prefill is not False
    # every running request needs one token of the budget; without chunks, so does a whole prompt
    least = max_num_seqs if chunked else max(max_num_seqs, max_model_len)
    budget = _positive(
        "max_num_batched_tokens", args.max_num_batched_tokens, max(_DEFAULT_MAX_NUM_BATCHED_TOKENS, least)
    )
    if budget < least:
        what = f"max_num_seqs={max_num_seqs}" if chunked else f"max_model_len={max_model_len} (chunked prefill is off)"
        if args.max_num_seqs is None and chunked:
            max_num_seqs = budget
        else:
            raise ConfigError(f"max_num_batched_tokens={budget} is smaller than {what}; raise it or lower the other")
    return SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=_threshold(args.long_prefill_token_threshold, budget),
        max_num_partial_prefills=_positive("max_num_partial_prefills", args.max_num_partial_prefills, 8),
        max_long_partial_prefills=_positive("max_long_partial_prefills", args.max_long_partial_prefills, 1),
        policy=args.scheduling_policy,  # type: ignore[arg-type]  # checked against its choices
        reserve_full_sequence=args.scheduler_reserve_full_isl,
        num_lookahead_tokens=0 if speculative is None else speculative.num_lookahead_tokens,
        num_batches_in_flight=parallel.pipeline_parallel_size,
        async_scheduling=async_scheduling(args, parallel, speculative is not None),
        max_loras=0 if lora is None else lora.max_loras,
    )


def _threshold(wish: int | None, budget: int) -> int:
    if wish is None:
        return max(1, budget // 4)
    if wish < 0:
        raise ConfigError(f"long_prefill_token_threshold must be at least 0, got {wish}")
    return wish


def _observability_config(args: EngineArgs) -> ObservabilityConfig:
    if args.otlp_traces_endpoint is not None:
        check_tracing(args.otlp_traces_endpoint)
    return ObservabilityConfig(not args.disable_log_stats, args.otlp_traces_endpoint)


def _positive(name: str, wish: int | None, default: int, most: int = 2**31 - 1) -> int:
    if wish is None:
        return default
    if not 1 <= wish <= most:
        raise ConfigError(f"{name} must be a positive integer of at most {most}, got {wish}")
    return wish


def _optional_positive(name: str, wish: int | None) -> int | None:
    if wish is not None and wish < 1:
        raise ConfigError(f"{name} must be a positive integer, got {wish}")
    return wish
