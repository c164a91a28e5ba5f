"""Guesses by Medusa's heads: each makes one, all from the hidden state that gave a row's last token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.config import OctavoConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.open import read_ids
from octavo.models.interface import CausalLM
from octavo.models.medusa import load_medusa, read_medusa
from octavo.ops.interface import Float, Ops
from octavo.ops.tape import ForwardInputs
from octavo.worker.drafter import Drafter
from octavo.worker.input_builder import StepInputs


class MedusaDrafter(Drafter):
    """Heads on the model. It stores nothing: a row's guesses follow from the step that it was last computed in."""

    def __init__(self, config: OctavoConfig, ops: Ops) -> None:
        super().__init__(config, ops)
        self._hidden: Float = np.zeros((0, 0), np.float32)
        self._lines: dict[tuple[int, int], int] = {}  # (row, position) -> its line of these

    def load(self, model: CausalLM, checkpoint: Checkpoint) -> None:
        speculative = self._config.speculative
        assert speculative is not None, "it is made for one"
        own, weights = self.open(checkpoint)
        self._heads = load_medusa(own.config, weights, model.facts, self._ops, speculative.num_speculative_tokens)
        self._hidden_size = model.facts.hidden_size
        vocab_size = read_medusa(own.config, model.facts).vocab_size
        self._token_ids: NDArray[np.integer] = np.arange(vocab_size)
        if vocab_size < model.facts.vocab_size:
            name = next((name for name in ("token_map", "medusa_heads.token_map") if weights.has(name)), "token_map")
            self._token_ids = read_ids(own, self._config.load, name, vocab_size)

    def release(self, weights: bool) -> None:
        if weights:
            del self._heads

    def guess_seconds(self, block_sizes: Sequence[int]) -> float:
        runs = []
        for _ in range(4):
            begin = time.perf_counter()
            self._guess(np.zeros((1, self._hidden_size), np.float32), 1)
            runs.append(time.perf_counter() - begin)
        return min(runs)

    def follow(self, forward: Callable[[ForwardInputs], Float], inputs: ForwardInputs, step: StepInputs) -> Float:
        self._hidden = forward(inputs)
        rows = np.repeat(step.rows, np.diff(step.query_start))[inputs.output_rows]
        positions = step.positions[inputs.output_rows]
        self._lines = {place: line for line, place in enumerate(zip(rows.tolist(), positions.tolist(), strict=True))}
        return self._hidden

    def propose(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        guesses: list[list[int]] = [[] for _ in rows]
        places, lines = [], []
        for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            # the state that gave the last token, not one behind a guess that was wrong
            line = self._lines.get((row, int(self._rows.num_tokens[row]) - 2))
            if line is not None and length > 0:
                places.append(place)
                lines.append(line)
        if places:
            made = self._guess(self._hidden[lines], max(lengths))
            for place, guess in zip(places, made, strict=True):
                known = guess[: lengths[place]]
                guesses[place] = known[: known.index(-1)] if -1 in known else known
        return guesses

    def _guess(self, hidden: Float, count: int) -> list[list[int]]:
        """Return each line's guesses, -1 where logits are no numbers."""
        columns = []
        for head in self._heads[:count]:
            best = self._ops.argmax(head(hidden, self._ops))
            columns.append(np.where(best < 0, -1, self._token_ids[best]))
        made: list[list[int]] = np.stack(columns, axis=1).tolist()
        return made
