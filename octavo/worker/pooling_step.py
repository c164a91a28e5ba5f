"""From hidden states to a pooling request's result: pooled, through the model's head, normalised or made a probability.

Everything here is computed request by request, but for the head, which is batch-invariant: a result never depends on
its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from octavo.config.pooling import PoolingConfig, SequencePooling
from octavo.ops.interface import Float, Int
from octavo.types.messages import PackedArray
from octavo.types.pooling import PoolingParams
from octavo.types.step import ModelRunnerOutput, NewRequestData
from octavo.worker.input_builder import StepInputs

_LEAST_NORM = 1e-12  # PyTorch's normalize


@dataclass(slots=True)
class _Pooling:
    """A request under way. parts: hidden states of its tokens so far, where it needs those of all [n, H]"""

    params: PoolingParams
    task: str
    token_ids: list[int]
    second_text_start: int | None
    parts: list[Float] = field(default_factory=list)

    @property
    def is_for_tokens(self) -> bool:
        return self.task in ("token_embed", "token_classify")


@dataclass(frozen=True, slots=True)
class _Share:
    """What one request gets from this step: how many hidden states, and whether its prompt is complete then."""

    request_id: str
    num_rows: int
    is_complete: bool


class PoolingStep:
    """Follows pooling requests from their first token to their result. Call order in a step: plan, collect."""

    def __init__(
        self, config: PoolingConfig, second_text_offset: int, compute_head: Callable[[Float], Float] | None
    ) -> None:
        """compute_head: None where pooled states are the result; see PoolingModel for second_text_offset"""
        self._config = config
        self._second_text_offset = second_text_offset
        self._compute_head = compute_head
        self._requests: dict[str, _Pooling] = {}
        self._step: list[_Share] = []

    def add(self, request: NewRequestData) -> None:
        """Start following a request."""
        params = request.pooling_params
        assert params is not None, "an engine for pooling gets no other requests"
        self._requests[request.request_id] = _Pooling(
            params,
            params.task or self._config.tasks[0],
            list(request.token_ids) if params.step_tag_id is not None else [],
            request.second_text_start,
        )

    def remove(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def plan(self, inputs: StepInputs) -> Int:
        """Move positions to where the model takes them; return the tokens whose hidden states `collect` needs [N]."""
        self._step = []
        positions, rows = inputs.positions, []
        starts = inputs.query_start.tolist()
        for index, request_id in enumerate(inputs.request_ids):
            request, start, end = self._requests[request_id], starts[index], starts[index + 1]
            is_complete = bool(inputs.samples[index])
            second, first_position = request.second_text_start, int(inputs.positions[start])
            if second is not None and self._second_text_offset:
                positions[start + max(0, second - first_position) : end] += self._second_text_offset
            wanted = self._wanted(request, start, end, is_complete)
            self._step.append(_Share(request_id, wanted.stop - wanted.start, is_complete))
            rows.append(wanted)
        return np.concatenate([np.arange(wanted.start, wanted.stop, dtype=np.int32) for wanted in rows])

    def collect(self, hidden: Float) -> ModelRunnerOutput:
        """Return the results of the requests whose prompt is complete, from the planned hidden states [N, H]."""
        done: list[tuple[str, _Pooling, int]] = []
        inputs: list[Float] = []
        start = 0
        for share in self._step:
            request, rows = self._requests[share.request_id], hidden[start : start + share.num_rows]
            start += share.num_rows
            if not share.is_complete:
                if share.num_rows:
                    request.parts.append(rows.copy())
                continue
            states = np.concatenate([*request.parts, rows]) if request.parts else rows
            if not request.is_for_tokens:
                states = _pool(states, self._config.sequence_pooling)
            inputs.append(states)
            done.append((share.request_id, request, len(states)))
            self.remove(share.request_id)
        self._step = []
        if not done:
            return ModelRunnerOutput()
        return self._results(done, np.concatenate(inputs))

    def _results(self, done: list[tuple[str, _Pooling, int]], states: Float) -> ModelRunnerOutput:
        values = self._compute_head(states) if self._compute_head is not None else states
        output = ModelRunnerOutput()
        start = 0
        for request_id, request, num_rows in done:
            result = self._finish(request, values[start : start + num_rows])
            start += num_rows
            if np.isfinite(result).all():
                array = result if request.is_for_tokens else result[0]
                output.pooled[request_id] = PackedArray(list(array.shape), np.ascontiguousarray(array, "<f4").tobytes())
            else:
                output.failures[request_id] = "the model's result is not finite"
        return output

    def _wanted(self, request: _Pooling, start: int, end: int, is_complete: bool) -> range:
        """Return which of the step's tokens start .. end - 1 a request needs."""
        pooling = self._config.sequence_pooling
        if request.is_for_tokens or pooling not in ("CLS", "LAST"):
            return range(start, end)
        if not is_complete:
            return range(start, start)
        return range(start, start + 1) if pooling == "CLS" else range(end - 1, end)

    def _finish(self, request: _Pooling, values: Float) -> Float:
        """values [n, O] -> the result [n, o]."""
        config, params = self._config, request.params
        activates = config.use_activation if params.use_activation is None else params.use_activation
        if request.task in ("embed", "token_embed"):
            values = values[:, : params.dimensions or config.dimensions]
            if not activates:
                return values
            norms = np.sqrt((values * values).sum(axis=1, keepdims=True))
            normed: Float = values / np.maximum(norms, np.float32(_LEAST_NORM))
            return normed
        if request.task == "token_classify" and params.step_tag_id is not None:
            values = values[np.array(request.token_ids) == params.step_tag_id]
        values = (values - np.float32(config.logit_mean)) / np.float32(config.logit_sigma)
        if params.returned_token_ids is not None:
            values = values[:, params.returned_token_ids]
        return _scores(values, config.score_activation) if activates else values


def _pool(states: Float, pooling: SequencePooling) -> Float:
    """states [n, H] of a sequence, or what CLS and LAST need of it -> [1, H]."""
    num_tokens = np.float32(len(states))
    if pooling == "MAX":
        largest: Float = states.max(axis=0, keepdims=True)
        return largest
    if pooling == "WEIGHTED_MEAN":
        weights = np.arange(1, len(states) + 1, dtype=np.float32)[:, None]
        weighted: Float = (states * weights).sum(axis=0, keepdims=True) / weights.sum()
        return weighted
    if pooling in ("MEAN", "MEAN_SQRT_LEN"):
        total = states.sum(axis=0, keepdims=True)
        pooled: Float = total / (num_tokens if pooling == "MEAN" else np.sqrt(num_tokens))
        return pooled
    return states


def _scores(values: Float, activation: str) -> Float:
    if activation == "identity":
        return values
    if activation == "sigmoid":
        decay: Float = np.exp(-np.abs(values))  # never overflows
        scores: Float = np.where(values >= 0, np.float32(1), decay) / (np.float32(1) + decay)
        return scores
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    probabilities: Float = powers / powers.sum(axis=1, keepdims=True)
    return probabilities
