"""Counting tokens for `usage`, in whole responses and along a stream."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from octavo.entrypoints.openai.protocol.common import GenerationRequest, PromptTokensDetails, StreamOptions, Usage
from octavo.errors import InvalidRequestError
from octavo.types.outputs import RequestOutput


class UsageCounter:
    """What one HTTP request has read and written so far. Prompt tokens are known from the start and never change."""

    def __init__(self, num_prompt_tokens: int, shows_details: bool) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._num_completion_tokens = 0
        self._num_cached_tokens: dict[int, int] = {}  # by prompt
        self._shows_details = shows_details

    def add(self, prompt_index: int, output: RequestOutput, num_new_tokens: int) -> None:
        """Take an output of one prompt that brought so many new tokens."""
        self._num_completion_tokens += num_new_tokens
        if output.num_cached_tokens is not None:
            self._num_cached_tokens.setdefault(prompt_index, output.num_cached_tokens)

    def usage(self) -> Usage:
        """Return the count as it is now."""
        details = PromptTokensDetails(sum(self._num_cached_tokens.values())) if self._shows_details else UNSET
        total = self._num_prompt_tokens + self._num_completion_tokens
        return Usage(self._num_prompt_tokens, self._num_completion_tokens, total, details)


class StreamUsage:
    """When a stream tells its usage: never, in one more chunk at the end, or in every chunk as well."""

    def __init__(self, options: StreamOptions | None, force: bool) -> None:
        self.at_end = force or bool(options and options.include_usage)
        self.in_every_chunk = self.at_end and bool(force or (options and options.continuous_usage_stats))


def check_stream(request: GenerationRequest) -> None:
    """Raise for stream_options without a stream, and for what a stream cannot tell."""
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("stream_options need stream=true", "stream_options")
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequestError("prompt_logprobs cannot be streamed; use stream=false", "prompt_logprobs")


def total_usage(outputs: Sequence[RequestOutput], shows_details: bool, num_scored_only: int = 0) -> Usage:
    """Return the usage of finished requests. num_scored_only: generated tokens per answer that nobody asked for."""
    counter = UsageCounter(sum(len(output.prompt_token_ids or ()) for output in outputs), shows_details)
    for index, output in enumerate(outputs):
        num_generated = sum(len(completion.token_ids) for completion in output.outputs)
        counter.add(index, output, num_generated - num_scored_only * len(output.outputs))
    return counter.usage()
