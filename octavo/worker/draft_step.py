"""The worker's part in speculation, of a pipeline the last stage's: guesses are verified, and new ones are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.config.speculative import SpeculativeConfig
from octavo.ops.interface import AttentionMetadata, Float, Int
from octavo.ops.tape import ForwardInputs
from octavo.sampling.sampler import Sampler
from octavo.speculative.draft_lengths import DraftLengths, StepCosts
from octavo.speculative.interface import Proposer
from octavo.speculative.ngram import NgramProposer
from octavo.speculative.suffix import SuffixProposer
from octavo.speculative.verify import VerifiedTokens, verify
from octavo.types.step import NewRequestData
from octavo.worker.bound_model import BoundModel, LogitsFunction, WantedRows
from octavo.worker.input_builder import StepInputs
from octavo.worker.request_rows import RequestRows

_MEASURED_TOKENS = 16


class DraftStep:
    """Call order in a step: verify (in place of the sampler, if there are guesses), propose.

    max_logits_rows: computed at once
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        rows: RequestRows,
        sampler: Sampler,
        max_logits_rows: int,
        proposer: Proposer,
        costs: StepCosts,
    ) -> None:
        self._rows = rows
        self._sampler = sampler
        self._max_logits_rows = max_logits_rows
        self._proposer = proposer
        self._is_free = costs.guess == 0  # then a guess is made of every row: it shows whether it would have been right
        self._lengths = DraftLengths(
            len(rows.num_tokens), config.num_speculative_tokens, costs, config.num_speculative_tokens_per_batch_size
        )
        self._num_seen = [0] * len(rows.num_tokens)  # tokens of each row that the proposer knows
        self._guesses: dict[int, list[int]] = {}  # row -> of its next tokens, whether they are computed or not

    def add(self, row: int, request: NewRequestData) -> None:
        """Take a request that has got a row."""
        self._proposer.add(row, request.token_ids, request.num_prompt_tokens)
        self._lengths.add(row)
        self._num_seen[row] = len(request.token_ids)

    def remove(self, row: int) -> None:
        """Forget the row's request."""
        self._proposer.remove(row)
        self._guesses.pop(row, None)

    def verify(
        self,
        compute_logits: LogitsFunction,
        wanted: WantedRows,
        rows: NDArray[np.intp],
        drafts: Sequence[Sequence[int]],
        bitmask: Int | None,
    ) -> VerifiedTokens:
        """Sample each row's next token and what guesses allow, and append them.

        wanted, bitmask: for each row in turn a line for each of its guesses, and one for what follows
        """
        result = VerifiedTokens([])
        begin = first_line = 0
        while begin < len(drafts):
            end, num_lines = begin, 0
            while end < len(drafts) and num_lines + len(drafts[end]) < self._max_logits_rows:
                num_lines += len(drafts[end]) + 1
                end += 1
            lines = slice(first_line, first_line + num_lines)
            part = verify(
                self._sampler,
                compute_logits(wanted[lines].hidden, wanted[lines].slots),
                rows[begin:end],
                drafts[begin:end],
                None if bitmask is None else bitmask[lines],
            )
            result.token_ids += part.token_ids
            result.logprobs.update({begin + index: packed for index, packed in part.logprobs.items()})
            result.failures.update({begin + index: text for index, text in part.failures.items()})
            begin, first_line = end, first_line + num_lines
        for row, token_ids in zip(rows.tolist(), result.token_ids, strict=True):
            self._rows.extend(row, token_ids)
        return result

    def propose(self, new_token_ids: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """Learn what was generated, and return guesses of what follows for the rows where they are worth it."""
        if not self._lengths.pays(len(new_token_ids)):
            self._guesses.clear()
            self._proposer.propose([], [])  # those that read along go on
            return {}
        rows = [self._rows.row(request_id) for request_id in new_token_ids]
        for row, token_ids in zip(rows, new_token_ids.values(), strict=True):
            if row in self._guesses:
                self._lengths.observe(row, self._guesses.pop(row), token_ids)
            self._catch_up(row)
        lengths = self._lengths.lengths(rows)
        wanted = self._rows.fitting(rows, [max(length, 1) for length in lengths] if self._is_free else lengths)
        asked = {row: length for row, length in zip(rows, wanted, strict=True) if length}
        made = zip(asked, self._proposer.propose(list(asked), list(asked.values())), strict=True)
        self._guesses.update((row, guesses) for row, guesses in made if guesses)
        return {
            request_id: self._guesses[row]
            for request_id, row, length in zip(new_token_ids, rows, lengths, strict=True)
            if length and row in self._guesses
        }

    def _catch_up(self, row: int) -> None:
        """Tell the proposer what the row got since it was told last: for a while it may not have been asked."""
        seen, known = self._num_seen[row], int(self._rows.num_tokens[row])
        self._proposer.append(row, self._rows.token_ids[row, seen:known].tolist())
        self._num_seen[row] = known


def make_proposer(config: SpeculativeConfig) -> Proposer:
    """Return what guesses by the configured method, if that needs no model."""
    if config.method == "ngram":
        return NgramProposer(config.prompt_lookup_min, config.prompt_lookup_max)
    return SuffixProposer(
        config.suffix_decoding_max_tree_depth,
        config.suffix_decoding_max_cached_requests,
        config.suffix_decoding_max_spec_factor,
        config.suffix_decoding_min_token_prob,
    )


def draft_output_rows(inputs: StepInputs, sampling: NDArray[np.intp], drafts: Sequence[Sequence[int]]) -> Int:
    """Return the tokens whose hidden states are wanted: of each request the last known one, and its guesses."""
    counts = np.array([len(draft) + 1 for draft in drafts], np.int32)
    first_tokens = inputs.query_start[1:][sampling] - counts
    first_lines = np.cumsum(counts, dtype=np.int32) - counts
    lines: Int = np.arange(counts.sum(), dtype=np.int32) + np.repeat(first_tokens - first_lines, counts)
    return lines


def measure_costs(
    bound: BoundModel,
    guess_seconds: float,
    block_sizes: Sequence[int],
    max_tokens: int,
    empty_hidden: Callable[[int], Float | None],
) -> StepCosts:
    """Time steps of one and of several tokens, and set what a guess costs against them.

    block_sizes: of the KV cache groups; what is written goes to the null block
    max_tokens: that a step may have; empty_hidden: for so many of them what a later stage takes beside them
    """
    most = min(_MEASURED_TOKENS, max_tokens)
    one, several = (step_seconds(bound, block_sizes, count, empty_hidden(count)) for count in (1, most))
    per_token = max((several - one) / max(most - 1, 1), 1e-9)
    guess = min(guess_seconds / per_token, 64.0)
    return StepCosts(fixed=float(np.clip(one / per_token - 1, 0.0, 64.0)), guess=guess)


def step_seconds(bound: BoundModel, block_sizes: Sequence[int], num_tokens: int, hidden: Float | None = None) -> float:
    """Time a step of one request. hidden: what it takes beside tokens, if anything"""
    positions = np.arange(num_tokens, dtype=np.int32)
    metadata = [
        AttentionMetadata(
            query_start=np.array([0, num_tokens], np.int32),
            seq_lens=np.array([num_tokens], np.int32),
            block_table=np.zeros((1, -(-num_tokens // size)), np.int32),
            slot_mapping=np.zeros(num_tokens, np.int64),
        )
        for size in block_sizes
    ]
    inputs = ForwardInputs(np.zeros(num_tokens, np.int32), positions, positions, metadata, hidden)
    return fastest_seconds(lambda: bound.logits(bound.forward(inputs)))


def fastest_seconds(work: Callable[[], object]) -> float:
    """Time a piece of work a few times."""
    runs = []
    for _ in range(4):
        begin = time.perf_counter()
        work()
        runs.append(time.perf_counter() - begin)
    return min(runs)
