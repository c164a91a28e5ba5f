"""What enters the engine core: one request, checked and tokenised."""

from __future__ import annotations

import enum

import msgspec

from octavo.types.adapters import Adapter
from octavo.types.grammar import GrammarSpec
from octavo.types.pooling import PoolingParams
from octavo.types.sampling_params import SamplingParams


class FinishReason(enum.IntEnum):
    """Why a request ended; `str()` gives the name that the API shows."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4

    def __str__(self) -> str:
        return self.name.lower()


# How the error text of a request begins that its own parameters brought down; any other failure is the engine's.
NO_TOKEN_LEFT = "no token is left: "
GRAMMAR_GAVE_UP = "structured_outputs cannot be enforced: "
OWN_FAULTS = (NO_TOKEN_LEFT, GRAMMAR_GAVE_UP)


class EngineCoreRequest(msgspec.Struct, array_like=True, omit_defaults=True):
    """One sequence to generate (n > 1 is already fanned out), trusted by everything behind the input side.

    request_id: unique among the engine's live requests (made so by the front end)
    eos_token_id: ends the request with stop_reason None; None when absent or ignored
    stop_token_ids: end the request with the id as stop_reason; the user's and, unless ignored, the further
        end-of-sequence ids of the generation config
    seed: the random stream's key; always set, chosen at admission when the user gave none
    output_token_ids: tokens generated before (a request resubmitted after an engine death)
    grammar: what the text must follow, in place of sampling_params.structured_outputs
    reasoning_end_token_ids: the grammar begins when these have been generated one after another; None: at once
    reasoning_start_token_ids: an output that does not begin with these has no reasoning; None: it has in any case
    call_start_token_ids: each of these begins a call and ends the reasoning too; it is the first that the grammar holds
    pooling_params: what to make of the prompt instead of generating; sampling_params are neutral then
    second_text_start: the prompt is a pair of texts, and the second begins at this token
    adapter: LoRA adapter to compute the request with
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float  # seconds, time.time()
    seed: int
    eos_token_id: int | None = None
    stop_token_ids: list[int] = []
    cache_salt: str | None = None
    priority: int = 0
    output_token_ids: list[int] = []
    grammar: GrammarSpec | None = None
    reasoning_end_token_ids: list[int] | None = None
    reasoning_start_token_ids: list[int] | None = None
    call_start_token_ids: list[list[int]] = []
    pooling_params: PoolingParams | None = None
    second_text_start: int | None = None
    adapter: Adapter | None = None
