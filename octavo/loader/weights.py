"""The seam between checkpoint files and models: tensors pulled by their Hugging Face name."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class HostTensor(Protocol):
    """A tensor in a checkpoint, read only when asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def float32(self) -> NDArray[np.float32]:
        """Read and, where needed, dequantise: a C-contiguous float32 array of `shape`."""
        ...


class WeightSource(Protocol):
    """The tensors of one checkpoint under their Hugging Face names, whatever the file format."""

    def has(self, name: str) -> bool: ...

    def get(self, name: str) -> HostTensor:
        """Return a tensor and mark it as used; raises CheckpointError naming it when it is missing."""
        ...

    def unused(self) -> list[str]:
        """Return the names that nobody asked for, sorted."""
        ...
