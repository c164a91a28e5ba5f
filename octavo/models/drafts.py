"""Networks that guess, by method; and whether a checkpoint has all of one, found before any matrix is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from octavo.config.speculative import SpeculativeConfig
from octavo.loader.compact import CompactMatrix
from octavo.loader.cut import CutTensor
from octavo.loader.dummy import DummyWeights
from octavo.loader.hf_config import HFConfig
from octavo.loader.weights import HostTensor, WeightSource
from octavo.models.decoder import Decoder
from octavo.models.eagle import load_eagle
from octavo.models.eagle3 import load_eagle3
from octavo.models.hidden_drafts import HiddenDraft
from octavo.models.medusa import load_medusa
from octavo.models.mimo import load_mtp
from octavo.models.registry import build_model
from octavo.ops.interface import Float, Ops, Weight
from octavo.ops.reference import ReferenceOps, ReferenceWeight
from octavo.ops.reference_quantized import ReferencePart


class LoadHiddenDraft(Protocol):
    """Reads a network that guesses from hidden states of a model. Raises CheckpointError."""

    def __call__(
        self, config: HFConfig, weights: WeightSource, model: Decoder, ops: Ops, max_model_len: int
    ) -> HiddenDraft: ...


LOADERS: Mapping[str, LoadHiddenDraft] = {"eagle": load_eagle, "eagle3": load_eagle3, "mtp": load_mtp}
_FEW_POSITIONS = 2


def check_tensors(config: HFConfig, weights: WeightSource, speculative: SpeculativeConfig, model: HFConfig) -> None:
    """Raise CheckpointError where what guesses lacks a tensor, has one of another shape, or one too many.

    config, weights: of what guesses; model: config of what it guesses for
    """
    outline, ops = _Outline(weights), _OutlineOps()
    if speculative.method == "draft_model":
        build_model(config, outline, ops, _FEW_POSITIONS)
        return
    target = build_model(model, _Outline(DummyWeights()), ops, _FEW_POSITIONS)
    if speculative.method == "medusa":
        load_medusa(config, outline, target.facts, ops, speculative.num_speculative_tokens)
    else:
        assert isinstance(target, Decoder), "what generates is a decoder"
        LOADERS[speculative.method](config, outline, target, ops, _FEW_POSITIONS)


class _Outline:
    """A WeightSource with the shapes of another one's matrices and no numbers; vectors it has, which are small."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.where = source.where
        self.has = source.has
        self.unused = source.unused

    def get(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        tensor = self._source.get(name, shape)
        return tensor if len(shape) == 1 else _Shape(shape)

    def stack(self, name: str, shape: tuple[int, int, int]) -> Sequence[HostTensor]:
        self._source.get(name, shape)
        return [_Shape(shape[1:])] * shape[0]


@dataclass(frozen=True)
class _Shape:
    shape: tuple[int, ...]

    def float32(self) -> Float:
        return np.broadcast_to(np.float32(0), self.shape)

    def compact(self, transposed: bool = False) -> None:
        return None

    def cut(self, rows: range, transposed: bool = False) -> HostTensor:
        return CutTensor(self, rows, transposed)


class _OutlineOps(ReferenceOps):
    """Packs matrices without copying them."""

    def pack(self, matrices: Sequence[Float | CompactMatrix]) -> Weight:
        return ReferenceWeight(tuple(ReferencePart(one, None) for one in matrices if isinstance(one, np.ndarray)))
