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
from octavo.loader.resolve import open_checkpoint
from octavo.models.interface import CausalLM
from octavo.models.registry import build_model
from octavo.ops.interface import Float, Int, Ops
from octavo.ops.kv_layout import KVCache
from octavo.ops.tape import ForwardInputs, TapeLimits
from octavo.quantization.open import open_model_weights
from octavo.types.kv_spec import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from octavo.worker.block_table import BlockTable
from octavo.worker.bound_model import BoundModel, bind_model
from octavo.worker.input_builder import flatten
from octavo.worker.request_rows import RequestRows

PREFIX = "draft."  # of its layers' names in the plan


class DraftModel:
    """A Proposer. Call order: load, kv_cache_specs, bind, attach, then rows. `release` undoes bind and perhaps load."""

    _model: CausalLM
    bound: BoundModel

    def __init__(self, config: OctavoConfig, ops: Ops) -> None:
        self._config = config
        self._ops = ops

    def load(self) -> None:
        """Read the weights."""
        config, draft = self._config, self._config.speculative
        assert draft is not None and draft.model is not None
        checkpoint = open_checkpoint(draft.model, config.load, revision=draft.revision)
        weights = open_model_weights(checkpoint, config.load)
        self._model = build_model(checkpoint.config, weights, self._ops, config.model.max_model_len)

    def release(self, weights: bool) -> None:
        """Let the caches go and, if asked to, the weights."""
        del self.bound
        if weights:
            del self._model

    def kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        """Return what its layers store. All of it: blocks must not be taken from under a model that lags behind."""
        cache = self._config.cache
        specs = self._model.kv_cache_specs(cache.block_size, cache.dtype)
        return {
            PREFIX + name: FullAttentionSpec(spec.block_size, spec.num_kv_heads, spec.head_dim, spec.dtype)
            for name, spec in specs.items()
        }

    def bind(self, kv_caches: Mapping[str, KVCache], plan: KVCacheConfig) -> None:
        """Take its layers' caches out of those of the plan."""
        own = {name.removeprefix(PREFIX): cache for name, cache in kv_caches.items() if name.startswith(PREFIX)}
        groups = [[n.removeprefix(PREFIX) for n in g.layer_names if n.startswith(PREFIX)] for g in plan.groups]
        scheduler = self._config.scheduler
        limits = TapeLimits(
            max_tokens=scheduler.max_num_batched_tokens,
            max_output_rows=scheduler.max_num_seqs,
            max_logits_rows=scheduler.max_num_seqs,
            hidden_size=self._model.facts.hidden_size,
            num_groups=len(groups),
        )
        eager = self._config.model.enforce_eager
        self.bound = bind_model(self._model, self._ops, own, groups, None if eager else limits)

    def attach(self, rows: RequestRows, block_tables: Sequence[BlockTable]) -> None:
        """Learn where rows are and their blocks."""
        self._rows = rows
        self._block_tables = block_tables
        self._num_read = np.zeros(len(rows.num_tokens), np.int32)  # of each row's tokens

    def add(self, row: int, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        self._num_read[row] = self._rows.num_computed_tokens[row]  # the prefix cache has the rest

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        """Nothing to do: the rows have them."""

    def remove(self, row: int) -> None:
        """Nothing to do: `add` begins anew."""

    def propose(self, rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        room = self._rows.token_ids.shape[1] - self._rows.num_tokens
        lengths = [min(length, max(int(room[row]), 0)) for row, length in zip(rows, lengths, strict=True)]
        guesses: list[list[int]] = [[] for _ in rows]
        going_on = [place for place, length in enumerate(lengths) if length > 0]
        if not going_on:
            return guesses
        index = np.array([rows[place] for place in going_on], np.intp)
        begins, ends = self._read_ahead(index), self._rows.num_tokens[index].copy()
        self._num_read[index] = ends
        while going_on:
            token_ids = self._next_tokens(np.array([rows[place] for place in going_on], np.intp), begins, ends)
            still = []
            for position, (place, token_id) in enumerate(zip(going_on, token_ids, strict=True)):
                guesses[place].append(token_id)
                if len(guesses[place]) < lengths[place]:
                    self._rows.token_ids[rows[place], ends[position]] = token_id  # behind what counts
                    still.append(position)
            going_on = [going_on[position] for position in still]
            begins, ends = ends[still], ends[still] + 1
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
            self._forward(rows[one], begins[one], np.array([end], np.int32))
            begins[longest] = end
        return begins

    def _next_tokens(self, rows: NDArray[np.intp], begins: Int, ends: Int) -> list[int]:
        logits = self.bound.logits(self._forward(rows, begins, ends))
        token_ids: list[int] = self._ops.argmax(logits).tolist()
        return token_ids

    def _forward(self, rows: NDArray[np.intp], begins: Int, ends: Int) -> Float:
        """Compute each row's tokens from its begin to its end; return hidden states of the last ones."""
        inputs = flatten(rows, begins, ends - begins, self._rows.token_ids, self._block_tables)
        last = inputs.query_start[1:] - 1
        return self.bound.forward(ForwardInputs(inputs.token_ids, inputs.positions, last, inputs.metadata))
