"""SamplingParams: what a user may ask of a generation, with vLLM's names, defaults and ranges.

Checked in two stages: `verify` needs no model and runs on construction; `verify_for_model` checks ids against the
width of the logits and runs once per request on the engine's input side. Behind it the values are trusted.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.log import get_logger
from octavo.types import sampling_checks as checks
from octavo.types.parameter_names import NamedParameters
from octavo.types.reasoning import ReasoningMarkers
from octavo.types.structured_params import StructuredOutputsParams

logger = get_logger(__name__)

GREEDY_BELOW = 1e-5  # a lower temperature means greedy
MIN_TEMPERATURE = 0.01  # lower ones are raised to it: scores divided by them overflow float32
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 1e-20, 1e20  # scores times or over others leave float32
MAX_COUNT = checks.INT64_MAX
MAX_N = 16384
MAX_BAD_WORD_SEQUENCES = 128
MAX_LOGPROB_TOKEN_IDS = 128
LOGIT_BIAS_LIMIT = 100.0

# Known to vLLM and not built here; a value other than the default is refused, never ignored.
UNSUPPORTED_FIELDS = (
    "prompt_logprob_token_ids",
    "prompt_logprob_start",
    "watermarking",
    "routed_experts_prompt_start",
    "trace_decode_token_ids",
)


class RequestOutputKind(enum.IntEnum):
    """What each RequestOutput of a stream holds: everything so far, only what is new, or nothing before the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class RepetitionDetectionParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """End a request whose output ends with min_count repetitions of a pattern.

    max_pattern_size: longest pattern looked for, in tokens; 0 = off
    min_pattern_size: shortest, in tokens; 0 means 1
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        name = "repetition_detection"
        self.max_pattern_size = checks.as_int(f"{name}.max_pattern_size", self.max_pattern_size, 0)
        self.min_pattern_size = checks.as_int(f"{name}.min_pattern_size", self.min_pattern_size, 0)
        self.min_count = checks.as_int(f"{name}.min_count", self.min_count, 0)
        if self.max_pattern_size == 0:
            return
        if self.min_count < 2:
            raise checks.wrong(f"{name}.min_count", "at least 2", self.min_count)
        self.min_pattern_size = max(self.min_pattern_size, 1)
        if self.min_pattern_size > self.max_pattern_size:
            expected = f"at most max_pattern_size={self.max_pattern_size}"
            raise checks.wrong(f"{name}.min_pattern_size", expected, self.min_pattern_size)


class SamplingParams(
    msgspec.Struct,
    metaclass=NamedParameters,
    kw_only=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    forbid_unknown_fields=True,
):
    """How to generate. Raises InvalidRequestError, with `parameter` set, for a value out of range.

    n: sequences per prompt; child i of a seeded request uses seed + i
    presence_penalty, frequency_penalty: [-2, 2], over the output
    repetition_penalty: [1e-20, 1e20], over prompt and output
    temperature: [0, 2]; below 1e-5 greedy, which resets top_p, top_k and min_p; else at least 0.01
    top_p: (0, 1]; top_k: 0 or -1 = off; min_p: [0, 1]
    seed: 64 bits, signed or unsigned; None or -1: chosen at admission
    stop: strings that end the text; stop_token_ids: ids that end it
    bad_words: texts that are never completed
    max_tokens: None = as many as the context has room for
    min_tokens: no end-of-sequence, stop id or stop string before so many tokens
    logprobs, prompt_logprobs: most likely ids to report per position, besides the token itself; -1 = all
    logprob_token_ids: report these ids instead of the most likely
    flat_logprobs: accepted; results are the same sequences either way
    logit_bias: {token id: addend}, clamped to +-100
    extra_args: read by custom logits processors
    skip_reading_prefix_cache: None = only when prompt logprobs are asked for
    thinking_token_budget: most tokens of reasoning; then its end is forced. -1 = no limit
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprob_token_ids: list[list[int]] | None = None
    prompt_logprob_start: int | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    watermarking: bool | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None
    skip_clone: bool = False
    _bad_words_token_ids: list[list[int]] | None = None
    _reasoning_markers: ReasoningMarkers | None = None
    _shown_special_tokens: list[str] = []

    def __post_init__(self) -> None:
        self.verify()

    # -- construction ----------------------------------------------------------------------------------------------

    @staticmethod
    def from_optional(**fields: Any) -> SamplingParams:
        """Build from fields of which any may be None for "not given"; max_tokens=None keeps its meaning (no limit)."""
        kept = {name: value for name, value in fields.items() if value is not None or name == "max_tokens"}
        return SamplingParams(**kept)

    @staticmethod
    def from_defaults(default_params: Mapping[str, object], overrides: Mapping[str, object]) -> SamplingParams:
        """Build from a model's defaults (generation_config.json names allowed); what the user gave explicitly wins.

        An override of None means "not given". Raises InvalidRequestError for an unknown name in overrides.
        """
        fields: dict[str, Any] = {}
        for name, value in default_params.items():
            if value is not None:
                fields["max_tokens" if name == "max_new_tokens" else name] = value
        fields.update({name: value for name, value in overrides.items() if value is not None})
        return SamplingParams(**fields)

    def clone(self) -> SamplingParams:
        """Return a deep copy (self when skip_clone is set)."""
        return self if self.skip_clone else copy.deepcopy(self)

    # -- derived ---------------------------------------------------------------------------------------------------

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def num_logprobs(self) -> int | None:
        """Return how many ids besides the token itself each position reports (-1 = all), or None."""
        return self.logprobs if self.logprob_token_ids is None else len(self.logprob_token_ids)

    @property
    def stop_strings(self) -> list[str]:
        """Return `stop` as the list that construction made of it."""
        return self.stop if isinstance(self.stop, list) else []

    @property
    def bad_words_token_ids(self) -> list[list[int]] | None:
        """Return the token sequences of bad_words; set by the input side, which has the tokenizer."""
        return self._bad_words_token_ids

    def set_bad_words_token_ids(self, sequences: Sequence[Sequence[int]]) -> None:
        """Store the token sequences of bad_words (each word with and without a leading space); none may be empty."""
        if len(sequences) > MAX_BAD_WORD_SEQUENCES:
            raise checks.wrong("bad_words", f"at most {MAX_BAD_WORD_SEQUENCES} token sequences", len(sequences))
        if not all(sequences):
            raise checks.wrong("bad_words", "made of words that give at least one token", sequences)
        self._bad_words_token_ids = [list(sequence) for sequence in sequences]

    @property
    def reasoning_markers(self) -> ReasoningMarkers | None:
        """Return what begins and ends the model's reasoning; set by whoever knows its format."""
        return self._reasoning_markers

    def set_reasoning_markers(self, markers: ReasoningMarkers) -> None:
        self._reasoning_markers = markers

    @property
    def shown_special_tokens(self) -> frozenset[str]:
        """Return the special tokens that the text has although skip_special_tokens leaves out the others."""
        return frozenset(self._shown_special_tokens)

    def show_special_tokens(self, tokens: Iterable[str]) -> None:
        """Keep these special tokens in the text, for a parser that looks for them."""
        self._shown_special_tokens = sorted(tokens)

    # -- checks ----------------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Check and normalise everything that needs no model. Call again after changing a field."""
        for name in UNSUPPORTED_FIELDS:
            value, default = getattr(self, name), _DEFAULTS[name]
            if type(value) is not type(default) or value != default:
                raise UnsupportedError(f"sampling parameter {name} is not supported; leave it out")
        self._verify_numbers()
        self._verify_stops()
        self._verify_logprobs()
        self._verify_token_sets()
        self._verify_kinds()
        if self.is_greedy:
            self.temperature, self.top_p, self.top_k, self.min_p = 0.0, 1.0, 0, 0.0
            if self.n > 1:
                raise checks.wrong("n", "1 with greedy sampling (temperature 0)", self.n)
        elif self.temperature < MIN_TEMPERATURE:
            logger.warning("temperature %g is below %g and raised to it", self.temperature, MIN_TEMPERATURE)
            self.temperature = MIN_TEMPERATURE

    def verify_for_model(self, vocab_size: int, max_logprobs: int = 20) -> None:
        """Check what depends on the model; call it when bad_words are tokenised.

        vocab_size: width of the logits; max_logprobs: the engine's limit
        """
        limit = min(max_logprobs, vocab_size)
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and (vocab_size if count == -1 else count) > limit:
                raise checks.wrong(name, f"at most {limit} (max_logprobs={max_logprobs})", count)
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias"):
            checks.check_ids_below(name, getattr(self, name) or (), vocab_size)
        banned = self._bad_words_token_ids or []
        for sequence in banned:
            checks.check_ids_below("bad_words", sequence, vocab_size)
        always_banned = {sequence[0] for sequence in banned if len(sequence) == 1}
        candidates = self.allowed_token_ids if self.allowed_token_ids is not None else range(vocab_size)
        if always_banned and always_banned.issuperset(candidates):
            raise InvalidRequestError("bad_words ban every allowed token: nothing is left to sample", "bad_words")

    def _verify_numbers(self) -> None:
        self.n = checks.as_int("n", self.n, 1, MAX_N)
        self.presence_penalty = checks.as_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self.frequency_penalty = checks.as_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self.repetition_penalty = checks.as_float(
            "repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY
        )
        self.temperature = checks.as_float("temperature", self.temperature, 0.0, 2.0)
        self.top_p = checks.as_float("top_p", self.top_p, 0.0, 1.0, low_open=True)
        self.top_k = max(checks.as_int("top_k", self.top_k, -1, MAX_COUNT), 0)
        self.min_p = checks.as_float("min_p", self.min_p, 0.0, 1.0)
        self.seed = checks.as_optional_int("seed", self.seed, checks.INT64_MIN, checks.UINT64_MAX)
        if self.seed == -1:
            self.seed = None
        self.max_tokens = checks.as_optional_int("max_tokens", self.max_tokens, 1, MAX_COUNT)
        self.min_tokens = checks.as_int("min_tokens", self.min_tokens, 0, MAX_COUNT)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise checks.wrong("min_tokens", f"at most max_tokens={self.max_tokens}", self.min_tokens)
        budget = checks.as_optional_int("thinking_token_budget", self.thinking_token_budget, -1, MAX_COUNT)
        self.thinking_token_budget = None if budget == -1 else budget
        self.stream_interval = checks.as_optional_int("stream_interval", self.stream_interval, 1, MAX_COUNT)

    def _verify_stops(self) -> None:
        for name in _BOOL_FIELDS:
            checks.as_bool(name, getattr(self, name))
        if self.skip_reading_prefix_cache is not None:
            checks.as_bool("skip_reading_prefix_cache", self.skip_reading_prefix_cache)
        self.stop = checks.as_texts("stop", self.stop)
        if self.stop and not self.detokenize:
            raise checks.wrong("stop", "empty when detokenize=False (use stop_token_ids)", self.stop)
        stop_token_ids = [] if self.stop_token_ids is None else self.stop_token_ids
        self.stop_token_ids = checks.as_token_ids("stop_token_ids", stop_token_ids)
        self.bad_words = checks.as_texts("bad_words", self.bad_words)

    def _verify_logprobs(self) -> None:
        if isinstance(self.logprobs, bool):
            self.logprobs = 1 if self.logprobs else None
        if isinstance(self.prompt_logprobs, bool):
            self.prompt_logprobs = 1 if self.prompt_logprobs else None
        self.logprobs = checks.as_optional_int("logprobs", self.logprobs, -1, MAX_COUNT)
        self.prompt_logprobs = checks.as_optional_int("prompt_logprobs", self.prompt_logprobs, -1, MAX_COUNT)
        if self.skip_reading_prefix_cache is None and self.prompt_logprobs is not None:
            self.skip_reading_prefix_cache = True
        if self.logprob_token_ids is None:
            return
        ids = checks.as_token_ids("logprob_token_ids", self.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS)
        self.logprob_token_ids = ids
        if self.logprobs is not None and self.logprobs != len(ids):
            raise checks.wrong("logprobs", f"len(logprob_token_ids)={len(ids)} when both are given", self.logprobs)

    def _verify_token_sets(self) -> None:
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = checks.as_token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise checks.wrong("allowed_token_ids", "a non-empty list, or left out to allow all", [])
        if self.logit_bias is not None:
            self.logit_bias = checks.as_logit_bias("logit_bias", self.logit_bias, LOGIT_BIAS_LIMIT)
        if self.extra_args is not None:
            self.extra_args = checks.as_extra_args("extra_args", self.extra_args)

    def _verify_kinds(self) -> None:
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError:
            raise checks.wrong("output_kind", "a RequestOutputKind", self.output_kind) from None
        self.repetition_detection = _as_struct(
            "repetition_detection", self.repetition_detection, RepetitionDetectionParams
        )
        self.structured_outputs = _as_struct("structured_outputs", self.structured_outputs, StructuredOutputsParams)


class BeamSearchParams(
    msgspec.Struct, metaclass=NamedParameters, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How to run a beam search; see SamplingParams for the fields that both have."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self.beam_width = checks.as_int("beam_width", self.beam_width, 1)
        self.max_tokens = checks.as_int("max_tokens", self.max_tokens, 1)
        self.temperature = checks.as_float("temperature", self.temperature, 0.0, 2.0)
        self.length_penalty = checks.as_float("length_penalty", self.length_penalty, -50.0, 50.0)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            checks.as_bool(name, getattr(self, name))
        self.structured_outputs = _as_struct("structured_outputs", self.structured_outputs, StructuredOutputsParams)


_BOOL_FIELDS = (
    "ignore_eos",
    "flat_logprobs",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "skip_clone",
)
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}


def _as_struct(name: str, value: Any, kind: Any) -> Any:
    """Return value, an instance of kind or None; a mapping (JSON) becomes one."""
    if value is None or isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise checks.wrong(name, f"a {kind.__name__}", value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidRequestError):
            raise error.__cause__ from None
        raise InvalidRequestError(f"{name}: {error}", parameter=name) from error
