"""Guesses by a second, smaller model: what it finds most likely, token by token.

Its layers are part of the KV plan, so a request's blocks and prefix hits are the same for both models. It reads what a
row has got since it guessed last; a prompt is read when its first token is there. What it stores never decides a
result, so keys that it lacks (of a prefix that was cached while nothing was guessed) only make guesses worse.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.config import OctavoConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.models.hidden_drafts import HiddenDraft
from octavo.models.interface import CausalLM
from octavo.models.registry import build_model
from octavo.ops.interface import Int, Ops
from octavo.worker.block_table import BlockTable
from octavo.worker.draft_network import DraftNetwork
from octavo.worker.drafter import Drafter
from octavo.worker.request_rows import RequestRows


class DraftModel(Drafter):
    """A whole model."""

    _network: DraftNetwork

    def __init__(self, config: OctavoConfig, ops: Ops) -> None:
        super().__init__(config, ops)
        self._network = DraftNetwork(config, ops, takes_hidden=False)

    def load(self, model: CausalLM, checkpoint: Checkpoint) -> None:
        own, weights = self.open(checkpoint)
        self._network.draft = HiddenDraft(build_model(own, weights, self._ops, self._config.model.max_model_len))

    def attach(self, rows: RequestRows, block_tables: Sequence[BlockTable]) -> None:
        super().attach(rows, block_tables)
        self._num_read = np.zeros(len(rows.num_tokens), np.int32)  # of each row's tokens

    def add(self, row: int, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        self._num_read[row] = self._rows.num_computed_tokens[row]  # the prefix cache has the rest

    def propose(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        if not rows:
            return []
        index = np.array(rows, np.intp)
        begins, ends = self._read_ahead(index), self._rows.num_tokens[index].copy()
        self._num_read[index] = ends
        return self._network.guess(index, ends, lengths, self._network.forward(index, begins, ends))

    def _read_ahead(self, rows: NDArray[np.intp]) -> Int:
        """Read all but what fits one step; return where each row's next step begins."""
        begins = self._num_read[rows].copy()
        ends = self._rows.num_tokens[rows]
        budget = self._config.scheduler.max_num_batched_tokens
        while (ends - begins).sum() > budget:
            longest = int((ends - begins).argmax())
            end = min(begins[longest] + budget, ends[longest] - 1)
            one = slice(longest, longest + 1)
            self._network.forward(rows[one], begins[one], np.array([end], np.int32))
            begins[longest] = end
        return begins
