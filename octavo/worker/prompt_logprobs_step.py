"""Log-probabilities of the prompt's own tokens, gathered chunk by chunk and handed over at the prompt's end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from octavo.ops.interface import Float, Ops
from octavo.sampling.logprobs import join, pack
from octavo.types.messages import PackedLogprobs
from octavo.types.step import NewRequestData
from octavo.worker.input_builder import StepInputs
from octavo.worker.request_rows import RequestRows

_MAX_LOGITS_ROWS = 128  # bounds the logits held at once: 128 x 256k x 4 bytes = 128 MB at worst


@dataclass(slots=True)
class _Pending:
    num_logprobs: int  # most likely ids to report per position, besides the token itself
    parts: list[PackedLogprobs] = field(default_factory=list)


class PromptLogprobsStep:
    """Follows the requests that asked for prompt log-probabilities and whose prompt is not computed yet."""

    def __init__(self, ops: Ops, vocab_size: int, compute_logits: Callable[[Float], Float]) -> None:
        self._ops = ops
        self._vocab_size = vocab_size
        self._compute_logits = compute_logits
        self._pending: dict[str, _Pending] = {}

    def add(self, request: NewRequestData) -> None:
        """Start following a request; one that already has output has had its prompt's values delivered."""
        wanted = request.sampling_params.prompt_logprobs
        if wanted is not None and len(request.token_ids) == request.num_prompt_tokens:
            self._pending[request.request_id] = _Pending(self._vocab_size if wanted == -1 else wanted)

    def remove(self, request_id: str) -> None:
        self._pending.pop(request_id, None)

    def collect(self, inputs: StepInputs, hidden: Float, rows: RequestRows) -> dict[str, PackedLogprobs]:
        """Compute this step's positions from hidden [T, H]; return the requests whose prompt is now complete."""
        if not self._pending:
            return {}
        complete = {}
        for index, request_id in enumerate(inputs.request_ids):
            pending = self._pending.get(request_id)
            if pending is None:
                continue
            row = inputs.rows[index]
            start, end = int(inputs.query_start[index]), int(inputs.query_start[index + 1])
            position = int(inputs.positions[start])
            num_prompt_tokens = int(rows.num_prompt_tokens[row])
            # the last prompt position predicts the first output token, which is the sampler's
            num_targets = min(end - start, num_prompt_tokens - 1 - position)
            targets = rows.token_ids[row, position + 1 : position + 1 + num_targets]
            for offset in range(0, num_targets, _MAX_LOGITS_ROWS):
                chunk = slice(offset, min(offset + _MAX_LOGITS_ROWS, num_targets))
                logits = self._compute_logits(hidden[start + chunk.start : start + chunk.stop])
                target_ids = np.ascontiguousarray(targets[chunk])
                pending.parts.append(pack(*self._ops.top_logprobs(logits, target_ids, pending.num_logprobs)))
            if position + (end - start) >= num_prompt_tokens:
                complete[request_id] = join(pending.parts, pending.num_logprobs + 1)
                self.remove(request_id)
        return complete
