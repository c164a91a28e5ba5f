"""Random weights for load_format="dummy": the engine runs at full size and speed without a checkpoint's tensors."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.loader.cut import CutTensor
from octavo.loader.weights import HostTensor

_SCALE = 0.02  # half-width of the uniform distribution around the centre


class DummyWeights:
    """A WeightSource that has every tensor, in the shape asked for. Values depend on the name and the seed only.

    tied: there is no lm_head, because the output projection is the embedding
    """

    def __init__(self, seed: int = 0, tied: bool = False) -> None:
        self.where = "random weights"
        self._seed = seed
        self._tied = tied

    def has(self, name: str) -> bool:
        return not (self._tied and name.endswith("lm_head.weight"))

    def get(self, name: str, shape: tuple[int, ...]) -> DummyTensor:
        return DummyTensor(name, shape, self._seed)

    def stack(self, name: str, shape: tuple[int, int, int]) -> list[DummyTensor]:
        return [DummyTensor(f"{name}[{index}]", shape[1:], self._seed) for index in range(shape[0])]

    def unused(self) -> list[str]:
        return []


@dataclass(frozen=True)
class DummyTensor:
    """Uniform random values around 1 for norm gains (one-dimensional weights), around 0 for everything else."""

    name: str
    shape: tuple[int, ...]
    seed: int

    def float32(self) -> NDArray[np.float32]:
        digest = hashlib.sha256(f"{self.seed}:{self.name}".encode()).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
        values = generator.random(math.prod(self.shape), dtype=np.float32)
        values -= np.float32(0.5)
        values *= np.float32(2 * _SCALE)
        if len(self.shape) == 1 and self.name.endswith(".weight"):
            values += np.float32(1)
        return values.reshape(self.shape)

    def compact(self, transposed: bool = False) -> None:
        """Random weights are float32."""
        return None

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        return CutTensor(self, rows, transposed)
