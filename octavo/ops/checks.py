"""Border checks that ops share: each raises ValueError naming the argument, what was expected and what came."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def check_array(name: str, array: NDArray[np.generic], shape: tuple[int | None, ...], dtype: type = np.float32) -> None:
    """Check dtype and shape (None: any size) and that the last axis is contiguous."""
    if array.dtype != dtype:
        raise ValueError(f"{name} must be {np.dtype(dtype).name}, got {array.dtype}")
    if len(array.shape) != len(shape) or any(
        expected is not None and size != expected for size, expected in zip(array.shape, shape, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape [{wanted}], got {list(array.shape)}")
    if array.size and array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
        raise ValueError(f"{name} must be contiguous in its last axis")


def check_range(name: str, values: NDArray[np.integer], limit: int) -> None:
    """Check that all integers are in 0 .. limit - 1."""
    if values.size and (values.min() < 0 or values.max() >= limit):
        raise ValueError(f"{name} must be in 0..{limit - 1}, got {values.min()}..{values.max()}")
