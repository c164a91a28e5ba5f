"""The adapters of a worker, in two tiers: read and checked in memory, and in the slots of the model's layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo.config.lora import LoRAConfig, LoRADtype
from octavo.errors import CheckpointError
from octavo.layers.adapted import AdaptedPart
from octavo.loader.compact import HalfMatrix, QuantizedMatrix
from octavo.log import get_logger
from octavo.lora.checkpoint import adapter_identity, check_fits, read_adapter
from octavo.ops.interface import AdapterMatrix, LowRank

logger = get_logger(__name__)


class AdapterStore:
    """Adapters by identity. Whoever takes a slot gives it back; a slot without users keeps its adapter until needed."""

    def __init__(self, config: LoRAConfig) -> None:
        self._config = config
        self._parts: Mapping[str, AdaptedPart] = {}
        self._read: OrderedDict[str, dict[str, LowRank]] = OrderedDict()  # least recently used first
        self._slots: list[str | None] = [None] * config.max_loras
        self._num_users = [0] * config.max_loras
        self._last_use = [0] * config.max_loras
        self._clock = 0

    def attach(self, parts: Mapping[str, AdaptedPart]) -> None:
        """Use the layers of a model that was just loaded; its slots are empty."""
        self._parts = parts
        self._slots = [None] * self._config.max_loras

    def load(self, folder: Path, identity: str, in_use: Collection[str]) -> None:
        """Read an adapter unless it is there. Raises what is wrong with it.

        in_use: identities that must stay, whatever max_cpu_loras is
        """
        if identity in self._read:
            self._read.move_to_end(identity)
            return
        pairs = read_adapter(folder, self._config.max_lora_rank, self._dtype)
        if adapter_identity(folder) != identity:
            raise CheckpointError(
                f"the adapter at {folder} has changed since it was first used; load it again with load_inplace"
            )
        shapes = {module: pair.shape for module, pair in pairs.items()}
        check_fits(folder, shapes, {module: part.shape for module, part in self._parts.items()})
        own = {module: self._parts[module] for module in pairs}
        self._read[identity] = {
            module: _share(pairs[module], part) for module, part in own.items() if part.adapters is not None
        }
        others = [known for known in self._read if known not in in_use and known != identity]
        for known in others[: max(len(self._read) - self._config.max_cpu_loras, 0)]:
            del self._read[known]
        logger.info("LoRA adapter %s: %d modules; %d adapters are ready", folder, len(pairs), len(self._read))

    def take_slot(self, identity: str) -> int:
        """Return the slot of a loaded adapter, which stays until `give_back`; the scheduler keeps to max_loras."""
        self._clock += 1
        slot = self._slots.index(identity) if identity in self._slots else self._fill(identity)
        self._num_users[slot] += 1
        self._last_use[slot] = self._clock
        return slot

    def give_back(self, slot: int) -> None:
        self._num_users[slot] -= 1

    def _dtype(self, module: str) -> LoRADtype:
        """Return the type in which a module's pair is kept; an embedding's is never int8."""
        part, dtype = self._parts.get(module), self._config.dtype
        if part is None or dtype not in ("auto", "int8"):
            return dtype
        return "int8" if part.is_linear and (part.rounds_inputs or dtype == "int8") else "auto"

    def _fill(self, identity: str) -> int:
        free = [slot for slot, count in enumerate(self._num_users) if count == 0]
        assert free, "no more than max_loras adapters run"
        slot = min(free, key=lambda slot: (self._slots[slot] is not None, self._last_use[slot]))
        pairs = self._read[identity]
        nothing: list[LowRank | None] = [None]
        layers = {
            id(part.adapters): (part.adapters, nothing * part.num_parts)
            for part in self._parts.values()
            if part.adapters is not None
        }
        for module, pair in pairs.items():
            part = self._parts[module]
            layers[id(part.adapters)][1][part.index] = pair
        for slots, adapters in layers.values():
            slots.put(slot, adapters)
        self._slots[slot] = identity
        return slot


def _share(pair: LowRank, part: AdaptedPart) -> LowRank:
    """Return what this rank computes of a pair: all inputs' way to some of the outputs, or some tokens'."""
    down, up = pair.down, pair.up
    if part.tokens is not None and len(part.tokens) < part.shape[1]:
        down = _taken(down, (slice(None), slice(part.tokens.start, part.tokens.stop)))
    if part.outputs is not None:
        up = _taken(up, part.outputs)
    return LowRank(down, up, pair.scale)


def _taken(matrix: AdapterMatrix, key: NDArray[np.intp] | tuple[slice, slice]) -> AdapterMatrix:
    """Return rows of a matrix, or columns of one without groups; a copy."""
    if isinstance(matrix, QuantizedMatrix):
        return replace(matrix, codes=matrix.codes[key], scales=matrix.scales[key])
    if isinstance(matrix, HalfMatrix):
        return replace(matrix, bits=np.array(matrix.bits[key], order="C"))
    return np.array(matrix[key], order="C")
