"""The engine's input side: a user's prompt and parameters, checked once, become an EngineCoreRequest.

Every entry (Python, HTTP, batch files) passes here, so nothing behind it checks again. Ids are checked against the
width of the model's logits, not the tokenizer's vocabulary: the two differ in real checkpoints.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from octavo.config import ModelConfig, SchedulerConfig
from octavo.engine.parallel_sampling import SEED_RANGE
from octavo.engine.pooling_input import PoolingInput
from octavo.engine.prompts import ParsedPrompt, TokenizationOptions, parse_prompt
from octavo.engine.reasoning import prompt_end, reasoning_markers
from octavo.errors import InvalidRequestError
from octavo.parsing.reasoning import ReasoningFormat
from octavo.sampling.custom_processors import validate_with_processors
from octavo.structured.checker import GrammarChecker
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.pooling import PoolingParams, neutral_sampling_params
from octavo.types.reasoning import ReasoningMarkers
from octavo.types.request import EngineCoreRequest
from octavo.types.sampling_checks import as_float, as_int, wrong
from octavo.types.sampling_params import SamplingParams
from octavo.types.structured_params import StructuredOutputsParams

LONG_TEXT_CHARS = 100_000  # tokenised in milliseconds; longer texts are looked at before
LONG_PROMPT_CHARS = 2000  # about half a millisecond; longer texts are tokenised outside the event loop


@dataclass(frozen=True)
class ProcessedRequest:
    """A checked request. `external_id` is the user's id, `prompt` the text as given; n > 1 is not fanned out yet."""

    external_id: str
    prompt: str | None
    request: EngineCoreRequest


class InputProcessor:
    """Checks and tokenises requests for one engine.

    max_sequence_len: prompt and output of one request, as far as the model's context and the KV cache go
    """

    def __init__(
        self,
        model: ModelConfig,
        scheduler: SchedulerConfig,
        tokenizer: Tokenizer | None,
        max_kv_tokens: int,
        reasoning: ReasoningFormat | None = None,
        grammars: GrammarChecker | None = None,
    ) -> None:
        """model, scheduler: as started, max_model_len final; max_kv_tokens: longest sequence that the cache holds

        grammars: None for an engine without structured outputs
        reasoning: how the model marks its reasoning, for requests that depend on it and do not say so themselves
        """
        self.max_sequence_len = min(model.max_model_len, max_kv_tokens)
        self._model = model
        self._tokenizer = tokenizer
        self._priorities = scheduler.policy == "priority"
        self._counter = itertools.count()
        self._longest_token_chars: int | None = None  # found when first needed
        self._reasoning = reasoning
        self._grammars = grammars
        self._pooling: PoolingInput | None = None
        if model.pooling is not None:
            longest = min(model.max_model_len, max_kv_tokens - 1)
            self._pooling = PoolingInput(model.pooling, tokenizer, longest, model.vocab_size)

    def process(
        self,
        request_id: str,
        prompt: object,
        params: SamplingParams | PoolingParams,
        *,
        priority: int = 0,
        arrival_time: float | None = None,
        tokenization_kwargs: Mapping[str, object] | None = None,
        reasoning_end_token_ids: Sequence[int] | None = None,
    ) -> ProcessedRequest:
        """Return the request that the core gets; raises InvalidRequestError or UnsupportedError and changes nothing.

        A grammar that is new here is compiled first, which takes a while.
        reasoning_end_token_ids: a grammar begins only after these, unless the engine has enable_in_reasoning; None: as
        the model's reasoning format and the prompt's end have it
        """
        if not isinstance(request_id, str) or not request_id:
            raise wrong("request_id", "non-empty text", request_id)
        priority = self._check_priority(priority)
        arrival_time = time.time() if arrival_time is None else as_float("arrival_time", arrival_time, 0, math.inf)
        if isinstance(params, PoolingParams):
            return self._process_pooling(request_id, prompt, params, priority, arrival_time, tokenization_kwargs)
        if self._pooling is not None:
            raise InvalidRequestError(
                f"{self._model.served_model_name} is a pooling model and generates no text; use embed, classify, score "
                "or encode (over HTTP: /v1/embeddings, /classify, /score, /rerank, /pooling)"
            )
        if not isinstance(params, SamplingParams):
            raise wrong("sampling_params", "a SamplingParams", params)
        options = TokenizationOptions.from_kwargs(tokenization_kwargs)
        parsed = parse_prompt(prompt, lambda text: self._encode(text, options))
        token_ids = self._truncate(parsed.token_ids, options)
        self._check_prompt(token_ids)
        checked_params = self._check_params(params, len(token_ids))
        self._add_reasoning_markers(checked_params, token_ids)
        processed = self._build(request_id, parsed, token_ids, checked_params, priority, arrival_time)
        if checked_params.structured_outputs is not None:
            reasoning_end = self._checked_ids("reasoning_end_token_ids", reasoning_end_token_ids or [])
            self._add_grammar(processed.request, checked_params.structured_outputs, reasoning_end)
        return processed

    def _process_pooling(
        self,
        request_id: str,
        prompt: object,
        params: PoolingParams,
        priority: int,
        arrival_time: float,
        tokenization_kwargs: Mapping[str, object] | None,
    ) -> ProcessedRequest:
        if self._pooling is None:
            raise InvalidRequestError(
                f"{self._model.served_model_name} generates text; for embeddings or scores of it start the engine with "
                "runner='pooling' (--runner pooling)"
            )
        params = self._pooling.params(params)
        checked = self._pooling.prompt(prompt, tokenization_kwargs)
        request = EngineCoreRequest(
            request_id=f"{request_id}-{next(self._counter):x}",
            prompt_token_ids=checked.token_ids,
            sampling_params=neutral_sampling_params(params.skip_reading_prefix_cache),
            arrival_time=arrival_time,
            seed=0,
            cache_salt=checked.cache_salt,
            priority=priority,
            pooling_params=params,
            second_text_start=checked.second_text_start,
        )
        return ProcessedRequest(request_id, checked.text, request)

    def takes_time(self, prompt: object, params: SamplingParams | PoolingParams) -> bool:
        """Say whether `process` may take longer than an event loop should wait."""
        if isinstance(prompt, Mapping):
            prompt = None if "prompt_token_ids" in prompt else prompt.get("prompt")
        is_long = isinstance(prompt, str) and len(prompt) > LONG_PROMPT_CHARS
        wish = getattr(params, "structured_outputs", None)
        if is_long or not isinstance(wish, StructuredOutputsParams):
            return is_long or wish is not None
        return self._grammars is not None and not self._grammars.is_known(wish)

    def _build(
        self,
        request_id: str,
        parsed: ParsedPrompt,
        token_ids: list[int],
        params: SamplingParams,
        priority: int,
        arrival_time: float,
    ) -> ProcessedRequest:
        number = next(self._counter)
        eos_token_ids = () if params.ignore_eos else self._model.eos_token_ids
        own_stop_ids = params.stop_token_ids or []
        request = EngineCoreRequest(
            request_id=f"{request_id}-{number:x}",  # unique even if the user's id is not
            prompt_token_ids=token_ids,
            sampling_params=params,
            arrival_time=arrival_time,
            seed=derive_seed(self._model.seed, number) if params.seed is None else params.seed % SEED_RANGE,
            eos_token_id=eos_token_ids[0] if eos_token_ids else None,
            stop_token_ids=list(dict.fromkeys([*own_stop_ids, *eos_token_ids[1:]])),
            cache_salt=parsed.cache_salt,
            priority=priority,
        )
        return ProcessedRequest(request_id, parsed.text, request)

    # -- prompt --------------------------------------------------------------------------------------------------------

    def _encode(self, text: str, options: TokenizationOptions) -> list[int]:
        if self._tokenizer is None:
            raise InvalidRequestError("text needs a tokenizer, but skip_tokenizer_init=True; pass token ids", "prompt")
        if not text:
            raise InvalidRequestError("the prompt is empty; expected at least one character or token id", "prompt")
        if len(text) > LONG_TEXT_CHARS and options.truncate_prompt_tokens is None:
            self._check_text_length(text, self._tokenizer)
        return self._tokenizer.encode(text, add_special_tokens=options.add_special_tokens is not False)

    def _check_text_length(self, text: str, tokenizer: Tokenizer) -> None:
        """Refuse a text that cannot fit however it is tokenised, without spending seconds on tokenising it."""
        if self._longest_token_chars is None:
            self._longest_token_chars = max(map(len, tokenizer.get_vocab()))
        least_tokens = len(text) // self._longest_token_chars
        if least_tokens >= self._model.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {len(text)} characters and thus over {least_tokens} tokens, but "
                f"max_model_len={self._model.max_model_len}; shorten the prompt",
                "prompt",
            )

    def _truncate(self, token_ids: list[int], options: TokenizationOptions) -> list[int]:
        wish = options.truncate_prompt_tokens
        if wish is None:
            return token_ids
        length = self.max_sequence_len - 1 if wish == -1 else wish
        if length >= len(token_ids):
            return token_ids
        return token_ids[-length:] if options.truncation_side == "left" else token_ids[:length]

    def _check_prompt(self, token_ids: Sequence[int]) -> None:
        """Raise unless the ids exist and the sequence can run with at least one new token."""
        if not token_ids:
            raise InvalidRequestError("the prompt is empty; expected at least one token", "prompt")
        if min(token_ids) < 0 or max(token_ids) >= self._model.vocab_size:
            outside = next(i for i in token_ids if not 0 <= i < self._model.vocab_size)
            expected = f"made of token ids from 0 to {self._model.vocab_size - 1} (the width of the model's logits)"
            raise wrong("prompt_token_ids", expected, outside)
        num_tokens, max_model_len = len(token_ids), self._model.max_model_len
        if num_tokens >= max_model_len:
            raise InvalidRequestError(
                # clients know a context that is too long by these words of OpenAI's
                f"this model's maximum context length is {max_model_len} tokens (max_model_len), at least one new one "
                f"included, but the prompt has {num_tokens} tokens; shorten it, or set truncate_prompt_tokens",
                "prompt",
            )
        if num_tokens >= self.max_sequence_len:
            raise InvalidRequestError(
                f"the prompt has {num_tokens} tokens and can never fit the KV cache, which holds "
                f"{self.max_sequence_len}; shorten the prompt or give the engine more kv_cache_memory_bytes",
                "prompt",
            )

    # -- parameters ----------------------------------------------------------------------------------------------------

    def _check_priority(self, priority: int) -> int:
        priority = as_int("priority", priority, -(2**63), 2**63 - 1)
        if priority and not self._priorities:
            raise InvalidRequestError(
                f"priority={priority} needs an engine with scheduling_policy='priority'; this one is first come, "
                "first served",
                "priority",
            )
        return priority

    def _checked_ids(self, name: str, token_ids: object) -> list[int]:
        if not isinstance(token_ids, Sequence):
            raise wrong(name, "a list of token ids", token_ids)
        return [as_int(name, token_id, 0, self._model.vocab_size - 1) for token_id in token_ids]

    def _check_params(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """Return a copy that is final for the model: bad words as ids, max_tokens within the context."""
        params = copy.copy(params)
        params.verify()  # the fields of a SamplingParams can be assigned after it was built
        if self._tokenizer is None and (params.stop_strings or params.bad_words):
            name = "stop" if params.stop_strings else "bad_words"
            raise InvalidRequestError(f"{name} needs a tokenizer, but skip_tokenizer_init=True; use token ids", name)
        if params.bad_words and self._tokenizer is not None:
            params.set_bad_words_token_ids(tokenize_bad_words(params.bad_words, self._tokenizer))
        room = self.max_sequence_len - num_prompt_tokens
        if params.min_tokens > room:
            raise InvalidRequestError(
                f"min_tokens={params.min_tokens} does not fit: the prompt has {num_prompt_tokens} tokens and "
                f"max_model_len={self._model.max_model_len} leaves room for {room}",
                "min_tokens",
            )
        params.verify_for_model(self._model.vocab_size, self._model.max_logprobs)
        validate_with_processors(self._model.logits_processors, params)
        # the policy: the prompt is never shortened, the output is cut at the context's end
        params.max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        return params

    def _add_grammar(self, request: EngineCoreRequest, wish: StructuredOutputsParams, reasoning_end: list[int]) -> None:
        """Give the request the grammar that it asks for, in place of the wish."""
        if self._grammars is None:
            raise InvalidRequestError(
                "structured_outputs need a tokenizer, but skip_tokenizer_init=True; leave them out",
                "structured_outputs",
            )
        request.grammar = self._grammars.check(wish)
        request.sampling_params.structured_outputs = None
        markers = request.sampling_params.reasoning_markers
        if reasoning_end:
            markers = ReasoningMarkers([], reasoning_end, begins_inside=True, answer_token_ids=reasoning_end)
        if markers is None or markers.ids_before_answer is None or self._grammars.config.enable_in_reasoning:
            return
        request.reasoning_end_token_ids = markers.ids_before_answer
        request.reasoning_start_token_ids = markers.ids_that_may_begin
        request.call_start_token_ids = markers.further_ends
        eos_token_ids = [] if request.sampling_params.ignore_eos else list(self._model.eos_token_ids)
        request.sampling_params.set_reasoning_markers(msgspec.structs.replace(markers, eos_token_ids=eos_token_ids))

    def _add_reasoning_markers(self, params: SamplingParams, token_ids: list[int]) -> None:
        """Tell a request with a budget or a grammar where its reasoning ends, unless its entry point did.

        Raises InvalidRequestError for a budget of a model that is not known to reason.
        """
        has_budget = params.thinking_token_budget is not None
        if params.reasoning_markers is not None or not (has_budget or params.structured_outputs is not None):
            return
        if self._reasoning is not None and self._tokenizer is not None:
            end = prompt_end(self._tokenizer, token_ids)
            params.set_reasoning_markers(reasoning_markers(self._reasoning, self._tokenizer, end))
        elif has_budget:
            raise InvalidRequestError(
                "thinking_token_budget needs a model whose reasoning format is known: its chat template shows none; "
                "name one with reasoning_parser, or leave the budget out",
                "thinking_token_budget",
            )


def tokenize_bad_words(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Return each word's token sequences at a text's start and, where they differ, after a space."""
    sequences: list[list[int]] = []
    for word in words:
        bare = word.lstrip() or word
        for spelling in (bare, f" {bare}"):
            token_ids = tokenizer.encode(spelling, add_special_tokens=False)
            if token_ids not in sequences:
                sequences.append(token_ids)
    return sequences


def derive_seed(engine_seed: int, request_number: int) -> int:
    """Return the 64-bit seed of the engine's n-th request that has none of its own."""
    digest = hashlib.blake2b(f"{engine_seed}:{request_number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
