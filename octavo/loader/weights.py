"""The seam between checkpoint files and models: tensors pulled by their Hugging Face name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CheckpointError
from octavo.loader.compact import CompactMatrix


class HostTensor(Protocol):
    """A tensor in a checkpoint, read only when asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def float32(self) -> NDArray[np.float32]:
        """Read and, where needed, dequantise: a C-contiguous float32 array of `shape`, possibly a read-only view."""

    def compact(self, transposed: bool = False) -> CompactMatrix | NDArray[np.float32] | None:
        """Return a matrix in the format that it is to be kept in; None: it is float32, take `float32()`.

        transposed: the transpose of `shape` is wanted, where the format allows.
        """

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        """Return these output features of a matrix, [out, in]; transposed: it is stored [in, out]."""


class WeightSource(Protocol):
    """The tensors of one checkpoint under their Hugging Face names, whatever the file format.

    Values follow the Hugging Face convention too: a GGUF source undoes what the conversion did (row order of q and k,
    the +1 in Gemma's norms, fused or transposed layouts), so models see one convention only.
    """

    @property
    def where(self) -> str:
        """Return the file or folder, for errors."""

    def has(self, name: str) -> bool: ...

    def get(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        """Return a tensor of the expected shape and mark it as used.

        Raises CheckpointError when it is missing or has another shape (naming both), UnsupportedError when its
        element type cannot be read.
        """

    def stack(self, name: str, shape: tuple[int, int, int]) -> Sequence[HostTensor]:
        """Return the matrices [out, in] of a tensor [N, out, in]; raises what `get` does."""

    def unused(self) -> list[str]:
        """Return the names that nobody asked for, sorted."""


def check_shape(name: str, expected: tuple[int, ...], got: tuple[int, ...], source: str) -> None:
    """Raise CheckpointError unless the tensor's shape is the one that the config asks for."""
    if expected != got:
        raise CheckpointError(
            f"{source}: tensor {name!r} has shape {list(got)}, but the config asks for {list(expected)}; "
            "the weights and the config are not of the same model"
        )
