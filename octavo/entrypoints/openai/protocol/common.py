"""Wire types that several endpoints share: usage, errors, and the sampling fields of every generation request."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct):
    """Where the prompt's tokens came from."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    """What the answer's tokens were spent on."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """How many tokens a request read and wrote. A prompt counts once, however many answers it gets."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | UnsetType | None = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType | None = UNSET

    def tell_reasoning(self, num_tokens: int | None) -> None:
        """Note how many tokens were reasoning; None: the model is not known to reason, and nothing is said of it."""
        if num_tokens is not None:
            self.completion_tokens_details = CompletionTokensDetails(num_tokens)


class StreamOptions(msgspec.Struct):
    """What a stream tells besides its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ErrorBody(msgspec.Struct):
    """One error in OpenAI's shape; code is the HTTP status."""

    message: str
    type: str
    param: str | None = None
    code: int | str | None = None


class ErrorResponse(msgspec.Struct):
    """The body of every response that is not a success."""

    error: ErrorBody


class GenerationRequest(msgspec.Struct, kw_only=True):
    """The fields that completions and chats share; `None` means "not given" everywhere.

    Ranges are those of SamplingParams. best_of: n, or not given
    """

    model: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    user: str | None = None

    use_beam_search: bool | None = None
    length_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    session_id: str | None = None
    cache_salt: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    repetition_detection: dict[str, int] | None = None
    thinking_token_budget: int | None = None
    vllm_xargs: dict[str, Any] | None = None
    echo: bool | None = None

    best_of: int | None = None
    response_format: Any = None
    structured_outputs: Any = None

    # capabilities that are not built: see unbuilt_fields.py for what each may hold
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: Any = None
    grammar: Any = None
    json_schema: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    logits_processors: Any = None
    watermarking: Any = None
    routed_experts_prompt_start: Any = None
    return_token_offsets: Any = None
    mm_payload: Any = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None
