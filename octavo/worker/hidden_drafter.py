"""Guesses by a small network that reads the model's hidden states: EAGLE, EAGLE-3, MTP.

It reads along: what the model computes in a step it reads behind it, as far as tokens turn out to be right; its keys
lie in the same blocks, so prefix hits, preemption and recovery need nothing more. Tokens of a prompt are always read,
those that are generated while no guess pays are not: their states are gone, guesses that look back there are worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.config import OctavoConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.models.decoder import Decoder
from octavo.models.drafts import LOADERS
from octavo.models.interface import CausalLM
from octavo.ops.interface import Float, Int, Ops
from octavo.ops.tape import ForwardInputs
from octavo.worker.draft_network import DraftNetwork
from octavo.worker.drafter import Drafter
from octavo.worker.input_builder import StepInputs


@dataclass(frozen=True, slots=True)
class _Step:
    """What the model has computed. states: of all tokens [T, W], side by side where they are of several layers

    rows, begins, counts: [R]; starts: [R], where each row's tokens begin; is_prompt: [R] bool, more than one known
    """

    rows: NDArray[np.intp]
    begins: Int
    counts: Int
    starts: Int
    is_prompt: NDArray[np.bool_]
    states: Sequence[Float]


class HiddenDrafter(Drafter):
    """A network beside the model."""

    _network: DraftNetwork
    _step: _Step

    def __init__(self, config: OctavoConfig, ops: Ops) -> None:
        super().__init__(config, ops)
        self._network = DraftNetwork(config, ops, takes_hidden=True)

    def load(self, model: CausalLM, checkpoint: Checkpoint) -> None:
        assert isinstance(model, Decoder), "what generates is a decoder"
        load = LOADERS[self._speculative.method]
        draft = load(*self.open(checkpoint), model, self._ops, self._config.model.max_model_len)
        self._network.draft, self.taps = draft, draft.taps
        # what the final norm gives, and what comes before it, are of the tokens that are asked for
        self._wants_all = not self.taps or self.taps[-1] == model.facts.num_layers
        self._vocab_size = model.facts.vocab_size

    def follow(self, forward: Callable[[ForwardInputs], Float], inputs: ForwardInputs, step: StepInputs) -> Float:
        wanted = inputs.output_rows
        if self._wants_all:
            inputs.output_rows = np.arange(len(inputs.token_ids), dtype=np.int32)
            inputs.output_adapter_slots = inputs.adapter_slots
        hidden = forward(inputs)
        starts, counts = step.query_start[:-1], np.diff(step.query_start)
        begins = step.positions[starts]
        is_prompt = self._rows.num_tokens[step.rows] - begins > 1
        states = inputs.tapped if self.taps else [hidden]
        self._step = _Step(step.rows, begins, counts, starts, is_prompt, states)
        return hidden[wanted] if self._wants_all else hidden

    def propose(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        step = self._step
        del self._step  # its states keep the tape's memory
        # a state counts if the token behind it is known: not those of guesses that were wrong
        counts = np.minimum(step.counts, self._rows.num_tokens[step.rows] - 1 - step.begins)
        is_read = (counts > 0) & (step.is_prompt | (len(rows) > 0))
        if not is_read.any():
            return []
        counts, begins, index = counts[is_read], step.begins[is_read], step.rows[is_read]
        ends = np.cumsum(counts, dtype=np.int32)
        tokens = np.arange(ends[-1]) + np.repeat(step.starts[is_read] - (ends - counts), counts)
        guessing = np.flatnonzero(np.isin(index, rows))  # both are in the step's order
        hidden = self._read(step, index, begins, begins + counts, tokens, ends[guessing] - np.int32(1))
        return self._network.guess(index[guessing], (begins + counts)[guessing], lengths, hidden) if rows else []

    def _read(
        self, step: _Step, rows: NDArray[np.intp], begins: Int, ends: Int, tokens: NDArray[np.intp], outputs: Int
    ) -> Float:
        """Read what the step has computed of these rows. tokens: which of the step's; outputs: see DraftNetwork."""
        states = [each[tokens] for each in step.states]
        hidden = states[0] if len(states) == 1 else np.concatenate(states, axis=1)
        draft = self._network.draft
        if draft.combine is not None:
            hidden = draft.combine(hidden, self._ops)
        first = rows[begins == 0] if draft.hides_first else rows[:0]
        kept = self._network.token_ids[first, 0]
        self._network.token_ids[first, 0] = self._vocab_size
        try:
            return self._network.forward(rows, begins, ends, hidden, outputs)
        finally:
            self._network.token_ids[first, 0] = kept
