"""Guesses by a second, smaller model: what it finds most likely, token by token.

Its layers are part of the KV plan, so a request's blocks and prefix hits are the same for both models. It reads what a
row has got since it guessed last; a prompt is read when its first token is there. What it stores never decides a
result, so keys that it lacks (of a prefix that was cached while nothing was guessed) only make guesses worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.config import OctavoConfig
from octavo.loader.checkpoint import Checkpoint
from octavo.models.interface import CausalLM
from octavo.models.registry import build_model
from octavo.ops.interface import Int, Ops
from octavo.ops.kv_layout import KVCache
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec
from octavo.worker.block_table import BlockTable
from octavo.worker.draft_network import DraftNetwork
from octavo.worker.draft_step import step_seconds
from octavo.worker.drafter import Drafter
from octavo.worker.request_rows import RequestRows


class DraftModel(Drafter):
    """A whole model."""

    def __init__(self, config: OctavoConfig, ops: Ops) -> None:
        super().__init__(config, ops)
        self._network = DraftNetwork(config, ops, takes_hidden=False)

    def load(self, model: CausalLM, checkpoint: Checkpoint) -> None:
        own, weights = self.open(checkpoint)
        self._network.load(build_model(own.config, weights, self._ops, self._config.model.max_model_len))

    def release(self, weights: bool) -> None:
        self._network.release(weights)

    def kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        return self._network.kv_cache_specs()

    def bind(self, kv_caches: Mapping[str, KVCache], plan: KVCacheConfig) -> None:
        self._network.bind(kv_caches, plan)

    def attach(self, rows: RequestRows, block_tables: Sequence[BlockTable]) -> None:
        super().attach(rows, block_tables)
        self._network.attach(rows.token_ids, block_tables)
        self._num_read = np.zeros(len(rows.num_tokens), np.int32)  # of each row's tokens

    def guess_seconds(self, block_sizes: Sequence[int]) -> float:
        return step_seconds(self._network.bound, block_sizes, 1)

    def add(self, row: int, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        self._num_read[row] = self._rows.num_computed_tokens[row]  # the prefix cache has the rest

    def propose(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        lengths = self._rows.fitting(rows, lengths)
        guesses: list[list[int]] = [[] for _ in rows]
        guessing = [place for place, length in enumerate(lengths) if length > 0]
        if guessing:
            index = np.array([rows[place] for place in guessing], np.intp)
            begins, ends = self._read_ahead(index), self._rows.num_tokens[index].copy()
            self._num_read[index] = ends
            hidden = self._network.forward(index, begins, ends)
            made = self._network.guess(index, ends, [lengths[place] for place in guessing], hidden)
            for place, guess in zip(guessing, made, strict=True):
                guesses[place] = guess
        return guesses

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
