"""Medusa (Cai et al., arXiv 2401.10774): heads over the final hidden state, each for a token further ahead.

A head is residual blocks x + silu(W x + b) and an output projection. Tensors are named as published (head, module:
`0.0.linear.weight`, `0.1.weight`) or as in vLLM (`blocks.0.layers.0.weight`, `lm_heads.0.weight`), with or without
`medusa_heads.` or `medusa_head.` before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.errors import CheckpointError
from octavo.layers.linear import Linear
from octavo.layers.parameters import Parameters
from octavo.loader.hf_config import HFConfig
from octavo.loader.weights import WeightSource
from octavo.models.config_reading import positive
from octavo.models.decoder_loading import check_unused
from octavo.models.hidden_drafts import check_made_for, checked_ids
from octavo.models.interface import ModelFacts
from octavo.ops.interface import Float, Int, Ops, Weight

_ROOTS = ("", "medusa_heads.", "medusa_head.")


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """vocab_size: of the heads' logits, of which the tensor `token_map` tells the model's ids if they are fewer."""

    num_heads: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    shares_lm_head: bool


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """token_ids: the model's id of each of theirs"""

    heads: tuple[MedusaHead, ...]
    token_ids: Int


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """Guesses one token."""

    blocks: tuple[Linear, ...]
    lm_head: Linear

    def __call__(self, hidden: Float, ops: Ops) -> Float:
        """hidden: [R, H] -> logits [R, V]."""
        for block in self.blocks:
            hidden = ops.add(hidden, ops.activation(block(hidden, ops), "silu"))
        return self.lm_head(hidden, ops)


def read_medusa(config: HFConfig, model: ModelFacts) -> MedusaConfig:
    """Read the heads' config; what it leaves out is as in the model. Raises ConfigError where it does not fit that."""
    hidden_size = positive(config, "hidden_size", model.hidden_size)
    check_made_for(config, model, hidden_size=hidden_size)
    # the published config carries the base model's own sizes under other names, or none at all
    num_heads = positive(config, "medusa_num_heads" if "medusa_num_heads" in config else "num_heads", 5)
    num_layers = positive(config, "medusa_num_layers" if "medusa_num_layers" in config else "num_hidden_layers", 1)
    vocab_size = positive(config, "truncated_vocab_size", model.vocab_size, limit=model.vocab_size)
    return MedusaConfig(num_heads, num_layers, hidden_size, vocab_size, config.bool("original_lm_head", False))


def load_medusa(config: HFConfig, weights: WeightSource, model: ModelFacts, ops: Ops, count: int) -> MedusaHeads:
    """Read the first `count` heads. Raises CheckpointError for tensors that are missing, misshapen or left over."""
    own = read_medusa(config, model)
    parameters = Parameters(weights, ops)
    for root in _ROOTS:
        is_published = weights.has(f"{root}0.0.linear.weight")
        if is_published or weights.has(f"{root}blocks.0.layers.0.weight"):
            break
    else:
        raise CheckpointError(
            f"{config.source}: no Medusa heads lie beside it; expected a tensor '0.0.linear.weight' (head, module) or "
            "'blocks.0.layers.0.weight'"
        )
    block, lm_head = "blocks.{head}.layers.{layer}", "lm_heads.{head}"
    if is_published:
        block, lm_head = "{head}.{layer}.linear", f"{{head}}.{own.num_layers}"
    elif own.shares_lm_head:
        lm_head = "lm_head" if weights.has(f"{root}lm_head.weight") else "lm_heads.0"
    tables: dict[str, Weight] = {}
    heads = []
    for head in range(count):
        names = [root + block.format(head=head, layer=layer) for layer in range(own.num_layers)]
        blocks = (
            parameters.linear([name], [own.hidden_size], own.hidden_size, weights.has(f"{name}.bias")) for name in names
        )
        name = root + lm_head.format(head=head)
        if name not in tables:
            tables[name] = parameters.table(name, own.vocab_size, own.hidden_size)
        heads.append(MedusaHead(tuple(blocks), Linear(tables[name])))
    unread = "|".join(str(head) for head in range(count, own.num_heads)) or "none"
    more = rf"^(medusa_heads?\.)?((blocks|lm_heads)\.)?({unread})\."
    check_unused(weights, [more, r"(^|\.)token_map$"], "Medusa")
    return MedusaHeads(tuple(heads), _token_ids(config, parameters, own.vocab_size, model.vocab_size))


def _token_ids(config: HFConfig, parameters: Parameters, vocab_size: int, model_vocab_size: int) -> Int:
    if vocab_size == model_vocab_size:
        return np.arange(vocab_size, dtype=np.int32)
    name = "token_map" if parameters.source.has("token_map") else "medusa_heads.token_map"
    return checked_ids(config, name, parameters.ids(name, vocab_size), model_vocab_size)
