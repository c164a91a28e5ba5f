"""A network that guesses, over the blocks of the rows: its part of the KV plan, and guesses one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.config import OctavoConfig
from octavo.models.hidden_drafts import HiddenDraft
from octavo.ops.interface import Float, Int, Ops
from octavo.ops.kv_layout import KVCache
from octavo.ops.tape import ForwardInputs, TapeLimits
from octavo.types.kv_spec import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from octavo.worker.block_table import BlockTable
from octavo.worker.bound_model import BoundModel, bind_model
from octavo.worker.input_builder import flatten
from octavo.worker.request_rows import RequestRows

PREFIX = "draft."  # of its layers' names in the plan


class DraftNetwork:
    """Call order: draft is set, kv_cache_specs, bind, attach, then the rest.

    takes_hidden: beside each hidden state it reads the token that follows
    """

    draft: HiddenDraft
    bound: BoundModel
    token_ids: Int  # [rows, positions], what it reads

    def __init__(self, config: OctavoConfig, ops: Ops, takes_hidden: bool) -> None:
        self._config = config
        self._ops = ops
        self._takes_hidden = takes_hidden

    def kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        """Return what its layers store. All of it: blocks must not be taken from under one that lags behind."""
        cache = self._config.cache
        specs = self.draft.network.kv_cache_specs(cache.block_size, cache.dtype)
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
            hidden_size=self.draft.network.facts.hidden_size,
            num_groups=len(groups),
            takes_hidden=self._takes_hidden,
        )
        eager = self._config.model.enforce_eager
        self.bound = bind_model(self.draft.network, self._ops, own, groups, None if eager else limits)

    def release(self, weights: bool) -> None:
        """Let the caches go and, if asked to, the weights."""
        del self.bound
        if weights:
            del self.draft

    def attach(self, rows: RequestRows, block_tables: Sequence[BlockTable]) -> None:
        """Learn where the rows' tokens are, and their blocks."""
        self.token_ids = rows.token_ids[:, int(self._takes_hidden) :]
        self._block_tables = block_tables

    def hidden_like(self, num_tokens: int) -> Float | None:
        """Return hidden states such as it reads, to measure its cost; None where it reads none."""
        return np.zeros((num_tokens, self.draft.network.facts.hidden_size), np.float32) if self._takes_hidden else None

    def forward(
        self, rows: NDArray[np.intp], begins: Int, ends: Int, hidden: Float | None = None, outputs: Int | None = None
    ) -> Float:
        """Compute each row's tokens from its begin to its end.

        hidden: [T, H] of these; outputs: the tokens, of all, whose hidden states to return; None: each row's last
        """
        inputs = flatten(rows, begins, ends - begins, self.token_ids, self._block_tables)
        last = inputs.query_start[1:] - 1 if outputs is None else outputs
        return self.bound.forward(ForwardInputs(inputs.token_ids, inputs.positions, last, inputs.metadata, hidden))

    def guess(self, rows: NDArray[np.intp], ends: Int, lengths: Sequence[int], hidden: Float) -> list[list[int]]:
        """Return up to so many guesses for each row, at least one of each; they are put into its tokens.

        ends: how many tokens of each are read; hidden: [R, H] of the last ones
        """
        guesses: list[list[int]] = [[] for _ in rows]
        going_on: NDArray[np.intp] = np.arange(len(rows))
        depth = 0
        while True:
            depth += 1
            token_ids = self._ops.argmax(self.bound.logits(hidden))
            can = token_ids >= 0  # not where logits are no numbers
            known = token_ids[can] if self.draft.token_ids is None else self.draft.token_ids[token_ids[can]]
            for place, token_id in zip(going_on[can].tolist(), known.tolist(), strict=True):
                guesses[place].append(token_id)
            still = np.array([len(guesses[place]) == depth < lengths[place] for place in going_on.tolist()], np.bool_)
            going_on = going_on[still]
            if not len(going_on):
                return guesses
            begins = ends[going_on] + np.int32(depth - 1)
            self.token_ids[rows[going_on], begins] = [guesses[place][-1] for place in going_on.tolist()]
            states = hidden[still] if self._takes_hidden else None
            hidden = self.forward(rows[going_on], begins, begins + np.int32(1), states)
