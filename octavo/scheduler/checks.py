"""What cannot work, refused before anything starts: settings, and requests too large for them."""

from __future__ import annotations

from octavo.config.configs import SchedulerConfig
from octavo.errors import ConfigError, InvalidRequestError
from octavo.scheduler.request import Request


def check_can_run(request: Request, config: SchedulerConfig, *, has_grammars: bool) -> None:
    """Raise InvalidRequestError for a request that could never be scheduled."""
    name = f"request {request.request_id}"
    if not 0 < request.num_tokens < config.max_model_len:
        raise InvalidRequestError(
            f"{name} has {request.num_tokens} tokens; expected 1 to {config.max_model_len - 1}, one less than the "
            "longest sequence that model and KV cache hold"
        )
    if request.is_structured and not has_grammars:
        raise InvalidRequestError(f"{name} asks for structured output, which this engine was started without")


def check_config(config: SchedulerConfig) -> None:
    """Raise ConfigError where the KV cache or the budget of a step leave no room for one request."""
    if config.max_model_len < 2:
        raise ConfigError(
            f"The KV cache holds sequences of at most {config.max_model_len} tokens; at least 2 are needed. "
            "Raise the KV cache memory or the number of blocks."
        )
    # the last token of a sequence is never computed
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < config.max_model_len - 1:
        raise ConfigError(
            f"Without chunked prefill a whole prompt must fit into one step: max_num_batched_tokens="
            f"{config.max_num_batched_tokens} is below max_model_len={config.max_model_len}. Raise it, lower "
            "max_model_len, or enable chunked prefill."
        )
