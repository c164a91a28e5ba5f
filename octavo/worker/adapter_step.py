"""Which adapter each row of a step is computed with."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo.config.lora import LoRAConfig
from octavo.loader.hf_config import HFConfig
from octavo.lora.store import AdapterStore
from octavo.models.adapting import adapt_decoder
from octavo.models.decoder import Decoder
from octavo.models.interface import CausalLM
from octavo.models.registry import describe_decoder
from octavo.models.sharing import ModelShare
from octavo.ops.interface import Int, Ops


class AdapterStep:
    """The slots of the rows. Call order: attach, then add and remove with the rows."""

    def __init__(self, config: LoRAConfig, max_num_seqs: int) -> None:
        self._config = config
        self._store = AdapterStore(config)
        self._slots = np.full(max_num_seqs, -1, np.int32)

    def attach(self, model: CausalLM, config: HFConfig, share: ModelShare, ops: Ops) -> Decoder:
        """Return the model with room for adapters."""
        assert isinstance(model, Decoder), "what generates is a decoder"
        adapted = adapt_decoder(model, *describe_decoder(config), share, ops, self._config.max_loras)
        self._store.attach(adapted.parts)
        self.rows = adapted.rows
        return adapted.decoder

    def load(self, path: str, identity: str, in_use: Collection[str]) -> None:
        """Read an adapter, see `AdapterStore.load`."""
        self._store.load(Path(path), identity, in_use)

    def add(self, row: int, identity: str | None) -> None:
        if identity is not None:
            self._slots[row] = self._store.take_slot(identity)

    def remove(self, row: int) -> None:
        if self._slots[row] >= 0:
            self._store.give_back(int(self._slots[row]))
            self._slots[row] = -1

    def token_slots(self, rows: NDArray[np.intp], query_start: Int) -> Int:
        """Return the slot of each token, [T], of requests in these rows."""
        return np.repeat(self._slots[rows], np.diff(query_start))
