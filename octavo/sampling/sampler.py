"""Logits -> token ids, for the rows of one step.

Order: raw logprobs snapshot -> grammar mask -> allowed ids -> bad words -> min_tokens, logit_bias, custom processors ->
penalties -> temperature -> min_p -> top-k -> top-p -> sample. The last five are one op, `sample`.
A row's result depends on its own logits and request alone. Knows rows and token ids; never text, never the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.config.configs import LogprobsMode
from octavo.ops.interface import Float, Int, Ops
from octavo.ops.reference_sampling import filter_logits
from octavo.sampling import philox
from octavo.sampling.custom_processors import CustomProcessors, LogitsProcessor
from octavo.sampling.logprobs import chosen_logprobs, top_logprobs
from octavo.sampling.row_processors import RowProcessor
from octavo.sampling.rows import Feature, Rows, SamplingRows, features_used
from octavo.types.messages import PackedLogprobs
from octavo.types.request import NO_TOKEN_LEFT
from octavo.types.step import NewRequestData

_CHANGES = Feature.EDITS | Feature.PENALTIES
_BAD_LOGITS = "the model returned NaN or infinite logits"
_NO_TOKEN = f"{NO_TOKEN_LEFT}masks and processors forbid all (or gave NaN)"


@dataclass(slots=True)
class SamplerOutput:
    """One step's result; keys are indices into the rows given to `sample`.

    token_ids: one per row; of a failed row 0: a step that was made ahead may still compute it
    logprobs: one position, for the rows that asked
    failures: why a row got no token
    """

    token_ids: list[int]
    logprobs: dict[int, PackedLogprobs] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Batch:
    """The rows of one step. failures: why a row got no token, by index; the others are alive."""

    logits: Float
    rows: NDArray[np.intp]
    features: NDArray[np.uint8]
    failures: dict[int, str] = field(default_factory=dict)

    def fail(self, index: int, reason: str) -> None:
        self.failures.setdefault(index, reason)

    def fail_where(self, bad: NDArray[np.bool_], reason: str) -> None:
        for index in bad.nonzero()[0].tolist():
            self.fail(index, reason)

    def having(self, feature: int) -> list[int]:
        """Return the indices of living rows that have any of the features."""
        return [i for i in (self.features & feature).nonzero()[0].tolist() if i not in self.failures]


class Sampler:
    """Owns the sampling state of all rows. Call order: add_request, sample (each step), remove_request.

    logits_processors: classes of custom ones
    """

    def __init__(
        self,
        ops: Ops,
        vocab_size: int,
        max_num_seqs: int,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        logits_processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        self._ops = ops
        self._rows = SamplingRows(vocab_size, max_num_seqs)
        self._custom = CustomProcessors(logits_processors, vocab_size, max_num_seqs)
        self._raw = logprobs_mode.startswith("raw")
        self._as_logits = logprobs_mode.endswith("logits")
        self._refused: dict[int, str] = {}  # rows whose processors could not be made; they fail at their first sample

    def add_request(self, row: int, request: NewRequestData) -> None:
        """Give a row to a request, new or resumed after a preemption."""
        early: list[RowProcessor] = []
        late: list[RowProcessor] = []
        try:
            early, late = self._custom.make_row_processors(request)
        except Exception as error:  # a user's code may raise anything, and must only cost its own request
            self._refused[row] = _describe("logits processor", error)
        self._rows.add(row, request, early, late, track=self._custom.runs_on_batch)
        if self._custom.runs_on_batch:
            self._custom.add(row, request, self._rows.states[row].output_ids)

    def remove_request(self, row: int) -> None:
        """Free the row."""
        self._rows.remove(row)
        self._refused.pop(row, None)
        if self._custom.runs_on_batch:
            self._custom.remove(row)

    def sample(
        self, logits: Float, rows: Sequence[int] | Rows, grammar_bitmask: NDArray[np.int32] | None = None
    ) -> SamplerOutput:
        """Sample one token for each row and remember it.

        logits: [N, V] float32, may be changed; rows: [N] distinct
        grammar_bitmask: [N, W] int32 as `Ops.apply_bitmask` takes it, or None
        """
        if len(rows) == 0:
            return SamplerOutput([])
        index = np.asarray(rows, np.intp)
        features = self._rows.features[index]
        batch = _Batch(logits, index, features)
        self._fail_refused(batch)
        used = features_used(features)
        changes = grammar_bitmask is not None or self._custom.runs_on_batch or bool(used & _CHANGES)
        if changes:
            batch.fail_where(self._ops.has_nan(logits), _BAD_LOGITS)
        wanted = batch.having(Feature.LOGPROBS) if used & Feature.LOGPROBS else []
        snapshot = None
        if wanted and self._raw:
            # a copy, since the logits are about to change; none is needed if they stay and all rows want logprobs
            snapshot = logits[wanted] if changes or len(wanted) < len(logits) else logits
        scaled = False
        if changes:
            self._change(batch, grammar_bitmask)
            scaled = self._run_late_processors(batch, used)
        token_ids = self._ops.argmax(logits)
        output = SamplerOutput(token_ids.tolist(), failures=batch.failures)
        if min(output.token_ids) < 0:
            batch.fail_where(token_ids < 0, _NO_TOKEN if changes else _BAD_LOGITS)
        if used & Feature.RANDOM:
            self._draw(batch, token_ids, scaled)
            output.token_ids = token_ids.tolist()
        if wanted:
            source = self._processed(batch, wanted, scaled) if snapshot is None else snapshot
            output.logprobs = self._collect_logprobs(batch, source, token_ids, wanted)
        if batch.failures:
            token_ids[list(batch.failures)] = 0
            output.token_ids = token_ids.tolist()
            alive = [i for i in range(len(index)) if i not in batch.failures]
            index, token_ids, features = index[alive], token_ids[alive], features[alive]
        if used & (Feature.RANDOM | Feature.TRACKED):
            self._rows.record(index, token_ids, features)
        return output

    # -- stages ----------------------------------------------------------------------------------------------------

    def _fail_refused(self, batch: _Batch) -> None:
        if self._refused:
            for i, row in enumerate(batch.rows.tolist()):
                if row in self._refused:
                    batch.fail(i, self._refused[row])

    def _change(self, batch: _Batch, grammar_bitmask: NDArray[np.int32] | None) -> None:
        """Apply masks, biases, custom processors and penalties in place."""
        if grammar_bitmask is not None:
            self._ops.apply_bitmask(batch.logits, grammar_bitmask)
        for i in batch.having(Feature.EDITS):
            state = self._rows.states[int(batch.rows[i])]
            self._run(batch, i, state.processors, state.output_ids)
        if self._custom.runs_on_batch:
            self._run_batch_processors(batch, late=False)
        penalised = batch.having(Feature.PENALTIES)
        if penalised:
            self._apply_penalties(batch, penalised)

    def _run_late_processors(self, batch: _Batch, used: int) -> bool:
        """Run the processors that come after the temperature; tell whether they made it necessary to divide already."""
        late = [i for i in batch.having(Feature.EDITS) if self._rows.states[int(batch.rows[i])].late_processors]
        if not (late or self._custom.runs_after_temperature) or not used & Feature.RANDOM:
            return False
        # greedy rows are left alone: these processors cannot change what they take
        random = batch.having(Feature.RANDOM)
        batch.logits[random] /= self._rows.temperature[batch.rows[random]][:, None]
        for i in late:
            if batch.features[i] & Feature.RANDOM:
                state = self._rows.states[int(batch.rows[i])]
                self._run(batch, i, state.late_processors, state.output_ids)
        if self._custom.runs_after_temperature:
            self._run_batch_processors(batch, late=True)
        return True

    def _run(self, batch: _Batch, index: int, processors: list[RowProcessor], output_ids: list[int]) -> None:
        try:
            for processor in processors:
                processor.apply(batch.logits[index], output_ids)
        except Exception as error:  # see add_request
            batch.fail(index, _describe("logits processor", error))

    def _run_batch_processors(self, batch: _Batch, late: bool) -> None:
        try:
            if not late:
                self._custom.update()
            self._custom.apply(batch.logits, batch.rows, late)
        except Exception as error:  # see add_request; nobody can tell which of the rows it was
            for i in range(len(batch.rows)):
                batch.fail(i, _describe("logits processor", error))

    def _apply_penalties(self, batch: _Batch, penalised: list[int]) -> None:
        rows, state = self._rows, self._rows.states
        lengths = np.zeros(len(batch.rows) + 1, np.int32)
        counts = []
        for i in penalised:
            row_counts = state[int(batch.rows[i])].counts
            assert row_counts is not None, "a penalised row counts its tokens"
            counts.append(row_counts)
            lengths[i + 1] = len(row_counts)
        self._ops.apply_penalties(
            batch.logits,
            np.cumsum(lengths, dtype=np.int32),
            np.concatenate([c.token_ids for c in counts]),
            np.concatenate([c.output_counts for c in counts]),
            rows.repetition[batch.rows],
            rows.frequency[batch.rows],
            rows.presence[batch.rows],
        )

    def _draw(self, batch: _Batch, token_ids: Int, scaled: bool) -> None:
        """Replace the argmax of the rows that draw."""
        random = batch.having(Feature.RANDOM)
        if not random:
            return
        rows, state = batch.rows[random], self._rows
        whole = len(random) == len(batch.rows)
        token_ids[random] = self._ops.sample(
            batch.logits if whole else batch.logits[random],
            np.ones(len(random), np.float32) if scaled else state.temperature[rows],
            state.top_k[rows],
            state.top_p[rows],
            state.min_p[rows],
            philox.uniform(state.seeds[rows], state.num_tokens[rows]),
        )

    def _processed(self, batch: _Batch, wanted: list[int], scaled: bool) -> Float:
        """Return what rows drew from: [len(wanted), V], divided and filtered; greedy rows as they are."""
        source = batch.logits[wanted]
        states = self._rows.states
        chosen = [
            place
            for place, i in enumerate(wanted)
            if i not in batch.failures and not states[int(batch.rows[i])].params.is_greedy
        ]
        indices = [wanted[place] for place in chosen]
        rows, state = batch.rows[indices], self._rows
        temperature = state.temperature[rows]
        if scaled:  # of the rows that draw; one with top_k=1 takes the argmax and was left alone
            temperature[(batch.features[indices] & Feature.RANDOM) != 0] = 1
        source[chosen] = filter_logits(
            source[chosen], temperature, state.top_k[rows], state.top_p[rows], state.min_p[rows]
        )
        return source

    def _collect_logprobs(
        self, batch: _Batch, source: Float, token_ids: Int, wanted: list[int]
    ) -> dict[int, PackedLogprobs]:
        """Return logprobs by index; source: [len(wanted), V]."""
        collected: dict[int, PackedLogprobs] = {}
        places = []
        for place, i in enumerate(wanted):
            if i in batch.failures:
                continue
            candidates = self._rows.states[int(batch.rows[i])].params.logprob_token_ids
            if candidates is None:
                places.append(place)
            else:
                row = source[place : place + 1]
                collected[i] = chosen_logprobs(self._ops, row, int(token_ids[i]), candidates, self._as_logits)
        if places:
            indices = [wanted[place] for place in places]
            logits = source if len(places) == len(wanted) else source[places]
            num_logprobs = self._rows.num_logprobs[batch.rows[indices]]
            packed = top_logprobs(self._ops, logits, token_ids[indices], num_logprobs, self._as_logits)
            collected.update(zip(indices, packed, strict=True))
        return collected


def _describe(what: str, error: Exception) -> str:
    return f"{what} failed: {type(error).__name__}: {error}"
