"""A pooling model: a body that computes hidden states, and a head for what is pooled from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from octavo.attention.context import ForwardContext
from octavo.errors import UnsupportedError
from octavo.layers.head import Activate, HeadActivation, HeadStep
from octavo.layers.norm import LayerNorm
from octavo.layers.parameters import Parameters
from octavo.loader.safetensors_weights import SafetensorsWeights
from octavo.loader.sentence_transformers import DenseModule
from octavo.models.decoder import Decoder
from octavo.models.interface import ModelFacts
from octavo.ops.interface import Float, Int, Ops
from octavo.types.kv_spec import KVCacheSpec


@dataclass(frozen=True, slots=True)
class PoolingModel:
    """A `CausalLM` whose logits are its head's outputs. steps: of the head; () where pooled states are the result

    second_text_offset: is added to the positions of a pair's second text
    """

    body: Decoder
    steps: tuple[HeadStep, ...]
    second_text_offset: int

    @property
    def facts(self) -> ModelFacts:
        return self.body.facts

    def kv_cache_specs(self, block_size: int, dtype: str) -> Mapping[str, KVCacheSpec]:
        return self.body.kv_cache_specs(block_size, dtype)

    def forward(self, token_ids: Int, positions: Int, context: ForwardContext) -> Float:
        return self.body.forward(token_ids, positions, context)

    def compute_logits(self, hidden: Float, ops: Ops) -> Float:
        """hidden: [R, H] -> [R, O]."""
        for step in self.steps:
            hidden = step(hidden, ops)
        return hidden


# -- heads as data -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Project:
    """A linear layer of a head. size: what it gives, if that is not the hidden size; "labels": as many as there are"""

    name: str
    size: int | Literal["labels"] | None = None
    bias: bool = True


@dataclass(frozen=True)
class Normalise:
    """A layer norm of a head."""

    name: str
    eps: float
    bias: bool


HeadLayer = Project | Normalise | HeadActivation


def load_head(
    layers: Sequence[HeadLayer], parameters: Parameters, hidden_size: int, num_labels: int, root: str = ""
) -> tuple[HeadStep, ...]:
    """Read a head's tensors. root: what stands before the body's names, where a head has one of them"""
    steps: list[HeadStep] = []
    size = hidden_size
    for layer in layers:
        if isinstance(layer, Project):
            out_size = num_labels if layer.size == "labels" else layer.size or hidden_size
            steps.append(parameters.linear([layer.name.format(root=root)], [out_size], size, layer.bias))
            size = out_size
        elif isinstance(layer, Normalise):
            bias = parameters.vector(f"{layer.name}.bias", size) if layer.bias else None
            steps.append(LayerNorm(parameters.vector(f"{layer.name}.weight", size), bias, layer.eps))
        else:
            steps.append(Activate(layer))
    return tuple(steps)


def load_dense_modules(modules: Sequence[DenseModule], ops: Ops) -> tuple[HeadStep, ...]:
    """Read the linear layers that sentence-transformers keeps in folders of their own."""
    steps: list[HeadStep] = []
    for module in modules:
        kind = DENSE_ACTIVATIONS[module.activation]
        parameters = Parameters(SafetensorsWeights(module.folder), ops)
        steps.append(parameters.linear(["linear"], [module.out_features], module.in_features, module.bias))
        if kind is not None:
            steps.append(Activate(kind))
    return tuple(steps)


def check_dense_modules(modules: Sequence[DenseModule], hidden_size: int) -> int:
    """Return the size of what the modules give; raises UnsupportedError for activations that are not built."""
    size = hidden_size
    for module in modules:
        if module.activation not in DENSE_ACTIVATIONS:
            raise UnsupportedError(
                f"{module.folder}: activation_function {module.activation!r} is not supported; supported: "
                f"{', '.join(DENSE_ACTIVATIONS)}"
            )
        if module.in_features != size:
            raise UnsupportedError(f"{module.folder}: in_features must be {size}, got {module.in_features}")
        size = module.out_features
    return size


DENSE_ACTIVATIONS: Mapping[str, HeadActivation | None] = {
    "Identity": None,
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}
