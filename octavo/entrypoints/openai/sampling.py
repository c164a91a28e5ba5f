"""From a request's fields to SamplingParams: the one conversion behind every endpoint that generates.

Precedence: the request, then the model's generation config, then OpenAI's defaults. A max_new_tokens that who started
the server gave is a limit for every request, as in vLLM; one of the model's own file is a default like the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo.entrypoints.openai.protocol.common import GenerationRequest
from octavo.entrypoints.openai.state import ServerState
from octavo.entrypoints.openai.structured import structured_outputs_of
from octavo.errors import InvalidRequestError
from octavo.types.sampling_checks import wrong
from octavo.types.sampling_params import LOGIT_BIAS_LIMIT, RequestOutputKind, SamplingParams

# Fields that mean the same, under the same name, in a request and in SamplingParams.
COMMON_FIELDS = (
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "min_tokens", "n", "seed", "stop"),
    *("stream_interval", "temperature", "top_p", "top_k", "min_p", "stop_token_ids", "include_stop_str_in_output"),
    *("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "prompt_logprobs", "logprob_token_ids"),
    *("allowed_token_ids", "bad_words", "repetition_detection", "thinking_token_budget"),
)


MAX_LOGIT_BIAS = 1024
_MAX_ID_DIGITS = 10


def to_sampling_params(
    server: ServerState,
    request: GenerationRequest,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    overrides: Mapping[str, object] | None = None,
) -> SamplingParams:
    """Return a request's sampling parameters; raises InvalidRequestError that names the field.

    max_tokens: as the endpoint understands the request; None = as many as the context has room for
    logprobs: candidates per generated token, or None
    overrides: what the endpoint decides, whatever the request says
    """
    model = server.engine.model_config
    defaults = model.default_sampling_params
    if max_tokens is None and isinstance(longest := defaults.get("max_tokens"), int):
        max_tokens = longest
    elif max_tokens is not None and model.max_tokens_limit is not None:
        max_tokens = min(max_tokens, model.max_tokens_limit)
    fields: dict[str, object] = {name: getattr(request, name) for name in COMMON_FIELDS}
    fields.update(
        logprobs=logprobs,
        logit_bias=check_logit_bias(request.logit_bias),
        extra_args=request.vllm_xargs,
        structured_outputs=structured_outputs_of(request),
        output_kind=RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY,
    )
    fields.update(overrides or {})
    check_stop_strings(request.stop, server.args.max_stop_strings)
    kept = {name: value for name, value in defaults.items() if name != "max_tokens"}
    merged = {**kept, **{name: value for name, value in fields.items() if value is not None}}
    return SamplingParams.from_optional(**merged, max_tokens=max_tokens)


def check_logit_bias(logit_bias: Mapping[str, float] | None) -> dict[str, float] | None:
    """Refuse what the Python API would clamp: a client that is out of range has made a mistake."""
    if not logit_bias:
        return None
    if len(logit_bias) > MAX_LOGIT_BIAS:
        raise wrong("logit_bias", f"an object of at most {MAX_LOGIT_BIAS} token ids", f"{len(logit_bias)} of them")
    for key, bias in logit_bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= _MAX_ID_DIGITS):
            raise wrong("logit_bias", "an object whose keys are token ids", key)
        if not math.isfinite(bias) or abs(bias) > LOGIT_BIAS_LIMIT:
            raise wrong("logit_bias", f"made of numbers from -{LOGIT_BIAS_LIMIT:g} to {LOGIT_BIAS_LIMIT:g}", bias)
    return dict(logit_bias)


def check_stop_strings(stop: str | list[str] | None, max_stop_strings: int) -> None:
    """Refuse more stop strings than the server allows; every token is compared with each of them."""
    if isinstance(stop, list) and len(stop) > max_stop_strings:
        raise InvalidRequestError(
            f"stop must be at most {max_stop_strings} strings, got {len(stop)}; --max-stop-strings allows more", "stop"
        )


def tokenization_kwargs(request: GenerationRequest, add_special_tokens: bool) -> dict[str, Any]:
    """Return how the request wants its prompt tokenised; add_special_tokens is the endpoint's default."""
    wish = request.add_special_tokens
    kwargs: dict[str, Any] = {"add_special_tokens": add_special_tokens if wish is None else wish}
    if request.truncate_prompt_tokens is not None:
        kwargs["truncate_prompt_tokens"] = request.truncate_prompt_tokens
    if request.truncation_side is not None:
        kwargs["truncation_side"] = request.truncation_side
    return kwargs


def check_best_of(request: GenerationRequest) -> None:
    """Refuse best_of unless it asks for nothing: as many sequences as are returned."""
    if request.best_of is not None and request.best_of != (1 if request.n is None else request.n):
        raise InvalidRequestError(
            f"best_of={request.best_of} is not supported unless it equals n={request.n or 1}; leave it out", "best_of"
        )


def check_num_sequences(num_prompts: int, num_choices: int, limit: int) -> None:
    """Refuse more answers in one request than the server allows."""
    if num_prompts * num_choices > limit:
        raise InvalidRequestError(
            f"{num_prompts} prompts times n={num_choices} are more than {limit} answers (--max-sequences-per-request)",
            "n",
        )
