"""Guesses by Medusa's heads: each makes one, all from the hidden state that gave a row's last token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

import numpy as np

from octavo.config import OctavoConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.models.interface import CausalLM
from octavo.models.medusa import load_medusa
from octavo.ops.interface import Float, Ops
from octavo.ops.tape import ForwardInputs
from octavo.worker.draft_step import fastest_seconds
from octavo.worker.drafter import Drafter
from octavo.worker.input_builder import StepInputs


class MedusaDrafter(Drafter):
    """Heads on the model. It stores nothing: a row's guesses follow from the step that it was last computed in."""

    def __init__(self, config: OctavoConfig, ops: Ops) -> None:
        super().__init__(config, ops)
        self._hidden: Float = np.zeros((0, 0), np.float32)
        self._step: StepInputs | None = None  # whose hidden states these are, of its tokens at _output_rows
        self._output_rows = np.zeros(0, np.int32)

    def load(self, model: CausalLM, checkpoint: Checkpoint) -> None:
        count = self._speculative.num_speculative_tokens
        self._heads = load_medusa(*self.open(checkpoint), model.facts, self._ops, count)
        self._hidden_size = model.facts.hidden_size

    def release(self, weights: bool) -> None:
        if weights:
            del self._heads

    def guess_seconds(self, block_sizes: Sequence[int]) -> float:
        hidden = np.zeros((1, self._hidden_size), np.float32)
        return fastest_seconds(lambda: self._guess(hidden, 1))

    def follow(self, forward: Callable[[ForwardInputs], Float], inputs: ForwardInputs, step: StepInputs) -> Float:
        self._hidden = forward(inputs)
        self._step, self._output_rows = step, inputs.output_rows
        return self._hidden

    def propose(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        step = self._step
        if not rows or step is None:
            return []
        row_of = np.repeat(step.rows, np.diff(step.query_start))[self._output_rows].tolist()
        places = zip(row_of, step.positions[self._output_rows].tolist(), strict=True)
        line_of = {place: line for line, place in enumerate(places)}
        # the state that gave the last token, not one behind a guess that was wrong
        lines = [line_of[place] for place in zip(rows, (self._rows.num_tokens[rows] - 2).tolist(), strict=True)]
        made = self._guess(self._hidden[lines], max(lengths))
        return [
            list(takewhile(lambda token_id: token_id >= 0, guess[:length]))
            for guess, length in zip(made, lengths, strict=True)
        ]

    def _guess(self, hidden: Float, count: int) -> list[list[int]]:
        """Return each line's guesses, -1 where logits are no numbers."""
        columns = []
        for head in self._heads.heads[:count]:
            best = self._ops.argmax(head(hidden, self._ops))
            columns.append(np.where(best < 0, -1, self._heads.token_ids[best]))
        made: list[list[int]] = np.stack(columns, axis=1).tolist()
        return made
