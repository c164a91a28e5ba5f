"""Log-probabilities of the prompt's own tokens, gathered chunk by chunk and handed over at the prompt's end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from octavo.ops.interface import Int, Ops
from octavo.sampling.logprobs import join, pack
from octavo.types.messages import PackedLogprobs
from octavo.types.step import NewRequestData
from octavo.worker.bound_model import LogitsFunction, WantedRows
from octavo.worker.input_builder import StepInputs
from octavo.worker.request_rows import RequestRows

_MAX_LOGITS_ROWS = 128  # bounds the logits held at once: 128 x 256k x 4 bytes = 128 MB at worst


@dataclass(slots=True)
class _Pending:
    num_logprobs: int  # most likely ids to report per position, besides the token itself
    parts: list[PackedLogprobs] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Share:
    """What one request gets from this step. targets: [n] int32, the ids that its tokens are followed by."""

    request_id: str
    targets: Int
    is_complete: bool


_NO_TOKENS: Int = np.zeros(0, np.int32)


class PromptLogprobsStep:
    """Follows the requests that asked for prompt log-probabilities and whose prompt is not computed yet.

    Call order in a step: plan, collect.
    """

    def __init__(self, ops: Ops, vocab_size: int) -> None:
        self._ops = ops
        self._vocab_size = vocab_size
        self._pending: dict[str, _Pending] = {}
        self._step: list[_Share] = []

    def add(self, request: NewRequestData) -> None:
        """Start following a request; one that already has output has had its prompt's values delivered."""
        wanted = request.sampling_params.prompt_logprobs
        if wanted is not None and len(request.token_ids) == request.num_prompt_tokens:
            self._pending[request.request_id] = _Pending(self._vocab_size if wanted == -1 else wanted)

    def remove(self, request_id: str) -> None:
        self._pending.pop(request_id, None)

    def plan(self, inputs: StepInputs, rows: RequestRows) -> Int:
        """Return the step's tokens whose hidden states `collect` needs, [N] int32."""
        self._step = []
        if not self._pending:
            return _NO_TOKENS
        tokens = []
        for index, request_id in enumerate(inputs.request_ids):
            if request_id not in self._pending:
                continue
            row = inputs.rows[index]
            start, end = int(inputs.query_start[index]), int(inputs.query_start[index + 1])
            position = int(inputs.positions[start])
            num_prompt_tokens = int(rows.num_prompt_tokens[row])
            # the last prompt position predicts the first output token, which is the sampler's
            num_targets = max(0, min(end - start, num_prompt_tokens - 1 - position))
            targets = rows.token_ids[row, position + 1 : position + 1 + num_targets]
            is_complete = position + (end - start) >= num_prompt_tokens
            self._step.append(_Share(request_id, np.ascontiguousarray(targets), is_complete))
            tokens.append(np.arange(start, start + num_targets, dtype=np.int32))
        return np.concatenate(tokens) if tokens else _NO_TOKENS

    def collect(self, compute_logits: LogitsFunction, wanted: WantedRows) -> dict[str, PackedLogprobs]:
        """Compute the planned positions from the wanted rows; return the requests whose prompt is now complete."""
        complete = {}
        start = 0
        for share in self._step:
            pending = self._pending[share.request_id]
            num_targets = len(share.targets)
            for offset in range(0, num_targets, _MAX_LOGITS_ROWS):
                end = min(offset + _MAX_LOGITS_ROWS, num_targets)
                rows = wanted[start + offset : start + end]
                logits = compute_logits(rows.hidden, rows.slots)
                target_ids = share.targets[offset:end]
                pending.parts.append(pack(*self._ops.top_logprobs(logits, target_ids, pending.num_logprobs)))
            start += num_targets
            if share.is_complete:
                complete[share.request_id] = join(pending.parts, pending.num_logprobs + 1)
                self.remove(share.request_id)
        self._step = []
        return complete
