"""The sampling state of the requests that hold a row, kept from step to step and indexed by row.

What every request has is a column of an array, so that a step gathers it for all rows at once; what only some requests
need (masks, token counts) is an object of that row. `features` tells which rows need what.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.sampling.row_processors import MinTokens, RowProcessor, make_row_processors
from octavo.sampling.token_counts import TokenCounts
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import NewRequestData

Rows = NDArray[np.intp]


class Feature:
    """Bits for what a row needs beyond the argmax of its logits. Plain integers: an IntFlag's operators are slow."""

    RANDOM = 1  # draws; a greedy row, or one with top_k=1, takes the argmax
    EDITS = 2  # has row processors
    PENALTIES = 4
    LOGPROBS = 8
    TRACKED = 16  # has a RowState that must see each new token


def features_used(features: NDArray[np.uint8]) -> int:
    """Return every bit that any of the rows has."""
    used = 0
    for bits in set(features.tolist()):
        used |= bits
    return used


@dataclass(slots=True)
class RowState:
    """What a row with special needs keeps. The processors of `late` run after the temperature."""

    params: SamplingParams
    output_ids: list[int]
    processors: list[RowProcessor]
    late_processors: list[RowProcessor] = field(default_factory=list)
    counts: TokenCounts | None = None


class SamplingRows:
    """Arrays over rows, [max_num_seqs] each; a row's entries are meaningful from `add` to `remove`.

    num_tokens: prompt and output so far, which is the index of the token sampled next; read only with Feature.RANDOM
    num_logprobs: most likely ids to report (vocab_size for all); read only with Feature.LOGPROBS
    """

    def __init__(self, vocab_size: int, max_num_seqs: int) -> None:
        self._vocab_size = vocab_size
        self.features = np.zeros(max_num_seqs, np.uint8)
        self.num_tokens = np.zeros(max_num_seqs, np.int64)
        self.seeds = np.zeros(max_num_seqs, np.uint64)
        self.temperature = np.zeros(max_num_seqs, np.float32)
        self.top_k = np.zeros(max_num_seqs, np.int32)
        self.top_p = np.ones(max_num_seqs, np.float32)
        self.min_p = np.zeros(max_num_seqs, np.float32)
        self.repetition = np.ones(max_num_seqs, np.float32)
        self.frequency = np.zeros(max_num_seqs, np.float32)
        self.presence = np.zeros(max_num_seqs, np.float32)
        self.num_logprobs = np.zeros(max_num_seqs, np.int32)
        self.states: dict[int, RowState] = {}

    def add(
        self,
        row: int,
        request: NewRequestData,
        custom: list[RowProcessor],
        late_custom: list[RowProcessor],
        track: bool,
    ) -> None:
        """Fill the row for a request, new or resumed.

        custom, late_custom: its own further processors, before and after the temperature
        track: keep the request's output ids even if nothing here needs them
        """
        params = request.sampling_params
        self.num_tokens[row] = len(request.token_ids)
        self.seeds[row] = request.seed & 0xFFFF_FFFF_FFFF_FFFF
        self.temperature[row] = params.temperature
        self.top_k[row] = min(params.top_k, self._vocab_size)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.repetition[row] = params.repetition_penalty
        self.frequency[row] = params.frequency_penalty
        self.presence[row] = params.presence_penalty
        wanted = params.logprobs or 0
        self.num_logprobs[row] = self._vocab_size if wanted == -1 else wanted
        features = Feature.TRACKED if track else 0
        if not params.is_greedy and params.top_k != 1:
            features |= Feature.RANDOM
        if params.num_logprobs is not None:
            features |= Feature.LOGPROBS
        processors = make_row_processors(request) + custom
        if processors or late_custom:
            features |= Feature.EDITS | Feature.TRACKED
        penalised = params.repetition_penalty != 1.0 or params.frequency_penalty != 0 or params.presence_penalty != 0
        if penalised:
            features |= Feature.PENALTIES | Feature.TRACKED
        self.features[row] = features
        if features & (Feature.TRACKED | Feature.LOGPROBS):
            output_ids = request.token_ids[request.num_prompt_tokens :]
            state = RowState(params, output_ids, processors, late_custom)
            if penalised:
                # without a repetition penalty the prompt has no say
                repeats = params.repetition_penalty != 1.0
                prompt_ids = request.token_ids[: request.num_prompt_tokens] if repeats else []
                state.counts = TokenCounts(prompt_ids, output_ids)
            self.states[row] = state

    def remove(self, row: int) -> None:
        """Give up the row."""
        self.features[row] = 0
        self.states.pop(row, None)

    def record(self, rows: Rows, token_ids: NDArray[np.int32], features: NDArray[np.uint8]) -> None:
        """Append one sampled token to each row; features: [N], those of the rows."""
        self.num_tokens[rows] += 1
        for i in (features & Feature.TRACKED).nonzero()[0].tolist():
            row, token_id = int(rows[i]), int(token_ids[i])
            state = self.states[row]
            state.output_ids.append(token_id)
            if state.counts is not None:
                state.counts.add(token_id)
            self._drop_finished(row, state)

    def _drop_finished(self, row: int, state: RowState) -> None:
        """Forget a min_tokens that is reached, so that the row is an ordinary one again."""
        num_output_tokens = len(state.output_ids)
        for processor in state.processors:
            if isinstance(processor, MinTokens) and processor.is_over(num_output_tokens):
                state.processors.remove(processor)
                if not state.processors and not state.late_processors:
                    self.features[row] ^= Feature.EDITS
                return
