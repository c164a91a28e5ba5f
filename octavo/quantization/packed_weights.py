"""A weight source over a quantised safetensors checkpoint: its modules' weights under their usual names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError
from octavo.loader.compact import CompactMatrix
from octavo.loader.cut import CutTensor
from octavo.loader.safetensors_weights import SafetensorsWeights
from octavo.loader.weights import HostTensor
from octavo.log import get_logger
from octavo.quantization.group_codes import GroupCodes
from octavo.quantization.layouts import Layout

logger = get_logger(__name__)
_WEIGHT = ".weight"


class PackedWeights:
    """Modules that were left out of the quantisation have plain weights, and are passed through."""

    def __init__(self, tensors: SafetensorsWeights, layout: Layout) -> None:
        self._tensors = tensors
        self.where = tensors.where
        self._layout = layout
        # The scale tells a quantised module apart even where its codes are called `weight`.
        self._mark = next(suffix for suffix in layout.suffixes if "scale" in suffix)

    def has(self, name: str) -> bool:
        return self._module(name) is not None or self._tensors.has(name)

    def get(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        module = self._module(name)
        if module is None:
            return self._tensors.get(name, shape)
        if len(shape) != 2:
            raise CheckpointError(
                f"{self._tensors.folder}: {name!r} is quantised, but the model needs it as {list(shape)}"
            )
        codes = self._layout.read(self._tensors, module, (shape[0], shape[1]))
        return _PackedTensor(name, codes)

    def stack(self, name: str, shape: tuple[int, int, int]) -> Sequence[HostTensor]:
        return self._tensors.stack(name, shape)

    def unused(self) -> list[str]:
        """Return the names that nobody asked for; a quantised weight counts as one."""
        names = set()
        for name in self._tensors.unused():
            module, _, suffix = name.rpartition(".")
            quantised = suffix in self._layout.suffixes and self._tensors.has(f"{module}.{self._mark}")
            names.add(module + _WEIGHT if quantised else name)
        return sorted(name for name in names if not self._was_read(name))

    def _was_read(self, name: str) -> bool:
        """True for what is left of a module that was read: zero points of symmetric codes, and the like."""
        module = self._module(name)
        return module is not None and f"{module}.{self._mark}" not in self._tensors.unused()

    def _module(self, name: str) -> str | None:
        """Return the module whose quantised weight `name` is."""
        module = name.removesuffix(_WEIGHT)
        if module == name or not self._tensors.has(f"{module}.{self._mark}"):
            return None
        return module


@dataclass(frozen=True)
class _PackedTensor:
    name: str
    codes: GroupCodes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.codes.shape

    def float32(self) -> NDArray[np.float32]:
        return self.codes.dequantized()

    def compact(self, transposed: bool = False) -> CompactMatrix | None:
        if transposed:
            return None
        matrix = self.codes.matrix()
        if matrix is None:
            logger.warning(
                "%s: groups of %d in rows of %d are kept and computed in float32",
                self.name,
                self.codes.group_size,
                self.codes.codes.shape[1],
            )
        return matrix

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        return CutTensor(self, rows, transposed)
