"""Guesses by a small network that reads the model's hidden states: EAGLE, EAGLE-3, MTP.

It reads along: what the model computes in a step it reads behind it, as far as tokens turn out to be right; its keys
lie in the same blocks, so prefix hits, preemption and recovery need nothing more. Tokens of a prompt are always read,
those that are generated while no guess pays are not: their states are gone, guesses that look back there are worse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.config import OctavoConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.open import read_ids
from octavo.loader.weights import WeightSource
from octavo.models.decoder import Decoder
from octavo.models.eagle import load_eagle
from octavo.models.eagle3 import load_eagle3, read_eagle3
from octavo.models.hidden_drafts import HiddenDraft
from octavo.models.interface import CausalLM
from octavo.models.mimo import load_mtp
from octavo.ops.interface import Float, Int, Ops
from octavo.ops.kv_layout import KVCache
from octavo.ops.tape import ForwardInputs
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec
from octavo.worker.block_table import BlockTable
from octavo.worker.draft_network import DraftNetwork
from octavo.worker.draft_step import step_seconds
from octavo.worker.drafter import Drafter
from octavo.worker.input_builder import StepInputs
from octavo.worker.request_rows import RequestRows


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

    _draft: HiddenDraft
    _step: _Step | None = None

    def __init__(self, config: OctavoConfig, ops: Ops) -> None:
        super().__init__(config, ops)
        self._network = DraftNetwork(config, ops, takes_hidden=True)

    def load(self, model: CausalLM, checkpoint: Checkpoint) -> None:
        assert isinstance(model, Decoder), "what generates is a decoder"
        self._draft = self._load_draft(model, *self.open(checkpoint))
        self.taps = self._draft.taps
        # what the final norm gives, and what comes before it, are of the tokens that are asked for
        self._wants_all = not self.taps or self.taps[-1] == model.facts.num_layers
        self._vocab_size = model.facts.vocab_size
        self._network.load(self._draft.network, self._draft.token_ids)

    def _load_draft(self, model: Decoder, own: Checkpoint, weights: WeightSource) -> HiddenDraft:
        speculative, max_model_len = self._config.speculative, self._config.model.max_model_len
        assert speculative is not None, "it is made for one"
        if speculative.method == "mtp":
            return load_mtp(own.config, weights, model, self._ops, max_model_len)
        if speculative.method == "eagle":
            return load_eagle(own.config, weights, model, self._ops, max_model_len)
        offsets = None
        if weights.has("d2t"):
            offsets = read_ids(own, self._config.load, "d2t", read_eagle3(own.config, model.facts).vocab_size)
        return load_eagle3(own.config, weights, offsets, model, self._ops, max_model_len)

    def release(self, weights: bool) -> None:
        self._network.release(weights)
        if weights:
            del self._draft

    def kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        return self._network.kv_cache_specs()

    def bind(self, kv_caches: Mapping[str, KVCache], plan: KVCacheConfig) -> None:
        self._network.bind(kv_caches, plan)

    def attach(self, rows: RequestRows, block_tables: Sequence[BlockTable]) -> None:
        super().attach(rows, block_tables)
        self._network.attach(rows.token_ids[:, 1:], block_tables)  # beside a position's state it reads the next token

    def guess_seconds(self, block_sizes: Sequence[int]) -> float:
        return step_seconds(self._network.bound, block_sizes, 1, self._network.hidden_like(1))

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
        guesses: list[list[int]] = [[] for _ in rows]
        step, self._step = self._step, None
        if step is None:
            return guesses
        wanted = dict(zip(rows, self._rows.fitting(rows, lengths), strict=True))
        # a state counts if the token behind it is known: not those of guesses that were wrong
        counts = np.minimum(step.counts, self._rows.num_tokens[step.rows] - 1 - step.begins)
        is_read = (counts > 0) & (step.is_prompt | any(wanted.values()))
        if not is_read.any():
            return guesses
        counts, begins, index = counts[is_read], step.begins[is_read], step.rows[is_read]
        ends = np.cumsum(counts, dtype=np.int32)
        tokens = np.arange(ends[-1]) + np.repeat(step.starts[is_read] - (ends - counts), counts)
        last_lengths = [wanted.get(row, 0) for row in index.tolist()]
        guessing = np.flatnonzero(last_lengths)
        hidden = self._read(step, index, begins, begins + counts, tokens, ends[guessing] - np.int32(1))
        if len(guessing):
            made = self._network.guess(
                index[guessing], (begins + counts)[guessing], [last_lengths[place] for place in guessing], hidden
            )
            of_row = dict(zip(index[guessing].tolist(), made, strict=True))
            guesses = [of_row.get(row, []) for row in rows]
        return guesses

    def _read(
        self, step: _Step, rows: NDArray[np.intp], begins: Int, ends: Int, tokens: NDArray[np.intp], outputs: Int
    ) -> Float:
        """Read what the step has computed of these rows. tokens: which of the step's; outputs: see DraftNetwork."""
        states = [each[tokens] for each in step.states]
        hidden = states[0] if len(states) == 1 else np.concatenate(states, axis=1)
        if self._draft.combine is not None:
            hidden = self._draft.combine(hidden, self._ops)
        if not self._draft.hides_first:
            return self._network.forward(rows, begins, ends, hidden, outputs)
        first = rows[begins == 0]
        kept = self._network.token_ids[first, 0]
        self._network.token_ids[first, 0] = self._vocab_size
        try:
            return self._network.forward(rows, begins, ends, hidden, outputs)
        finally:
            self._network.token_ids[first, 0] = kept
