"""Decides how tokens are guessed ahead, from speculative_config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from octavo.config import EngineArgs, LoadConfig, OctavoConfig
from octavo.config.speculative import SpeculativeConfig, SpeculativeMethod
from octavo.engine.draft_weights import check_weights, draft_config, infer_method
from octavo.errors import ConfigError, UnsupportedError
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.resolve import open_checkpoint
from octavo.log import get_logger
from octavo.models.interface import ModelFacts
from octavo.models.mimo import check_mtp
from octavo.quantization.open import open_model_weights
from octavo.utils.names import closest_names

logger = get_logger(__name__)

METHODS: tuple[SpeculativeMethod, ...] = get_args(SpeculativeMethod)
_WITHOUT_WEIGHTS = ("ngram", "suffix")
_MAX_TOKENS = 128
_COUNTS = (
    "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max",
    "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests",
)  # fmt: skip
_SHARES = ("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob")
# vLLM's further keys -> (values that ask for nothing, why there is nothing else)
_NEUTRAL: Mapping[str, tuple[tuple[object, ...], str]] = {
    "rejection_sample_method": (("standard",), "a guess is kept if it is what would have been drawn without it"),
    "draft_sample_method": (("greedy",), "guesses are the most likely tokens: which they are changes no result"),
    "disable_padded_drafter_batch": ((False, True), ""),
    "parallel_drafting": ((False,), "no such draft model is built"),
    "use_heterogeneous_vocab": ((False,), "a draft model must have the model's own vocabulary"),
    "enable_adaptive_verification": ((False,), "the number of guesses always adapts"),
    "draft_tensor_parallel_size": ((1,), "one process guesses"),
    "quantization": ((), "a draft model is loaded like the model itself"),
    "max_model_len": ((), "a draft model guesses for sequences of any length"),
    "attention_backend": ((), "there is one attention backend"),
    "moe_backend": ((), "there is one way to compute mixtures of experts"),
    "kv_cache_dtype": ((), "a draft model shares the model's KV cache"),
    "enforce_eager": ((False, True), ""),
}
_NOT_BUILT = (
    "ngram_gpu", "mlp_speculator", "dflash", "dspark", "extract_hidden_states", "custom_class",
)  # fmt: skip


def speculative_config(args: EngineArgs, checkpoint: Checkpoint, load: LoadConfig) -> SpeculativeConfig | None:
    """Decide speculative_config and its short forms; None for none. Raises ConfigError or UnsupportedError.

    What it must have in common with the model, which is `checkpoint`, is for `check_speculation`.
    """
    short = {"method": args.spec_method, "model": args.spec_model, "num_speculative_tokens": args.spec_tokens}
    options = {**(args.speculative_config or {}), **{name: value for name, value in short.items() if value is not None}}
    values = {name: value for name, value in options.items() if value is not None}
    if not values:
        return None
    method = _method(values, checkpoint, load)
    values.pop("method", None)
    draft: dict[str, Any] = {name: values.pop(name) for name in ("model", "revision") if name in values}
    _check_neutral(values)
    limits = _limits(values.pop("num_speculative_tokens_per_batch_size", ()))
    for name, value in values.items():
        _check_number(name, value)
    if method == "ngram":
        _complete_lookup(values)
    elif method == "suffix":
        depth = values.get("suffix_decoding_max_tree_depth", 24)
        values.setdefault("num_speculative_tokens", min(depth, _MAX_TOKENS))
    elif method == "mtp":
        check_mtp(draft_config(draft.get("model"), draft.get("revision"), checkpoint, load))
        values.setdefault("num_speculative_tokens", 1)
    if "num_speculative_tokens" not in values:
        raise ConfigError(f"speculative_config with method {method!r} needs num_speculative_tokens, for example 8")
    if not 1 <= values["num_speculative_tokens"] <= _MAX_TOKENS:
        raise ConfigError(
            f"speculative_config.num_speculative_tokens must be 1 to {_MAX_TOKENS}, "
            f"got {values['num_speculative_tokens']}"
        )
    if method not in _WITHOUT_WEIGHTS:
        values.update(draft)
    config = SpeculativeConfig(method, num_speculative_tokens_per_batch_size=limits, **values)
    logger.info("speculation: %s, up to %d tokens ahead", method, config.num_speculative_tokens)
    return config


def check_speculation(config: OctavoConfig, facts: ModelFacts, checkpoint: Checkpoint) -> None:
    """Raise ConfigError or UnsupportedError where nothing can guess for the model, or not the weights named."""
    speculative = config.speculative
    if speculative is None:
        return
    if config.model.pooling is not None:
        raise UnsupportedError("speculative_config has no meaning for a pooling model, which generates nothing")
    if speculative.method not in _WITHOUT_WEIGHTS:
        from octavo.models.drafts import check_tensors  # here: it brings ops, which front ends do without

        own = checkpoint
        if speculative.model is not None:  # else it lies beside the model's weights
            own = open_checkpoint(speculative.model, config.load, revision=speculative.revision)
        check_weights(config, speculative, facts, own.config)
        check_tensors(own.config, open_model_weights(own, config.load), speculative, checkpoint.config)


def _method(values: Mapping[str, Any], checkpoint: Checkpoint, load: LoadConfig) -> SpeculativeMethod:
    method, model = values.get("method"), values.get("model")
    for name in ("model", "revision"):
        if not isinstance(values.get(name, ""), str):
            raise ConfigError(f"speculative_config.{name} must be a name, of what guesses, got {values[name]!r}")
    if method is None and model is not None:
        if model == "ngram":
            return "ngram"
        return infer_method(model, draft_config(model, values.get("revision"), checkpoint, load))
    if isinstance(method, str) and method.endswith("_mtp"):
        logger.warning("speculative_config.method=%r is an old name of 'mtp'", method)
        method = "mtp"
    for known in METHODS:
        if method == known:
            if known in _WITHOUT_WEIGHTS and model not in (None, known):
                raise ConfigError(f"speculative_config.model={model!r} has no meaning with method {known!r}")
            if known not in (*_WITHOUT_WEIGHTS, "mtp") and model is None:
                raise ConfigError(f"speculative_config with method {known!r} needs model, the name of what guesses")
            return known
    if method in _NOT_BUILT:
        raise UnsupportedError(f"speculative_config: {method!r} is not built; use method {' or '.join(METHODS)}")
    hint = closest_names(str(method), METHODS)
    raise ConfigError(f"speculative_config.method must be one of {', '.join(METHODS)}, got {method!r}{hint}")


def _check_neutral(values: dict[str, Any]) -> None:
    """Take out the keys that ask for nothing; refuse those that do, and those that nobody knows."""
    known = (*_COUNTS, *_SHARES, "num_speculative_tokens_per_batch_size")
    for name in list(values):
        if name in known:
            continue
        if name not in _NEUTRAL:
            hint = closest_names(name, ("method", "model", *known, *_NEUTRAL))
            raise ConfigError(f"speculative_config has no key {name!r}{hint}")
        accepted, reason = _NEUTRAL[name]
        if not any(type(values[name]) is type(value) and values[name] == value for value in accepted):
            raise UnsupportedError(
                f"speculative_config.{name}={values[name]!r} is not supported: {reason}; leave it out"
            )
        del values[name]


def _check_number(name: str, value: object) -> None:
    if name in _COUNTS:
        least = 0 if name == "suffix_decoding_max_cached_requests" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"speculative_config.{name} must be a whole number of at least {least}, got {value!r}")
    elif not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
        raise ConfigError(f"speculative_config.{name} must be a number of at least 0, got {value!r}")


def _limits(wish: object) -> tuple[tuple[int, int, int], ...]:
    """Read [[least batch size, greatest, guesses], ...]."""
    is_list = isinstance(wish, (list, tuple)) and all(isinstance(entry, (list, tuple)) for entry in wish)
    entries = [tuple(entry) for entry in wish] if is_list else [()]  # type: ignore[attr-defined]
    for entry in entries:
        if [type(number) for number in entry] != [int] * 3 or not (1 <= entry[0] <= entry[1] and entry[2] >= 0):
            raise ConfigError(
                "speculative_config.num_speculative_tokens_per_batch_size must be a list such as [[1, 4, 5], [5, 32, "
                f"2]]: least and greatest batch size, guesses; got {wish!r}"
            )
    return tuple(entries)


def _complete_lookup(values: dict[str, Any]) -> None:
    """Let prompt_lookup_min and prompt_lookup_max default to each other, and both to 5."""
    least = values.get("prompt_lookup_min", values.get("prompt_lookup_max", 5))
    most = values.get("prompt_lookup_max", least)
    if least > most:
        raise ConfigError(f"speculative_config.prompt_lookup_min={least} is over prompt_lookup_max={most}")
    if most > _MAX_TOKENS:  # each size takes a table of the whole text
        raise ConfigError(f"speculative_config.prompt_lookup_max must be at most {_MAX_TOKENS}, got {most}")
    values["prompt_lookup_min"], values["prompt_lookup_max"] = least, most
