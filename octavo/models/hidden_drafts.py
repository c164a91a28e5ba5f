"""Networks that guess the token after next from the model's hidden states: what EAGLE and MTP have in common.

At position p such a network takes the model's hidden state of p and the token of p + 1, which the model has drawn from
it, and guesses the token of p + 2. What it gives for p takes the place of the hidden state of p + 1 to guess further.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from octavo.attention.context import ForwardContext
from octavo.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.layers.linear import Linear
from octavo.layers.norm import Norm
from octavo.layers.parallel import AnyLinear
from octavo.layers.rotary import cos_sin_table
from octavo.loader.hf_config import HFConfig
from octavo.models.decoder import DecoderLayer, layer_specs
from octavo.models.decoder_config import DecoderConfig
from octavo.models.decoder_loading import DecoderLoading
from octavo.models.interface import CausalLM, ModelFacts
from octavo.ops.interface import Float, Int, Ops
from octavo.types.kv_spec import KVCacheSpec


@dataclass(frozen=True, slots=True)
class HiddenDraft:
    """A network that guesses, and what it reads of the model.

    network: takes the hidden states in its context, and the tokens that follow
    taps: layers of the model whose states it reads, see ForwardContext; none: what the final norm gives
    combine: makes the tapped states, side by side [T, len(taps) * H], the network's; None: it takes the only ones
    hides_first: of position 0 no token is read: the id behind the vocabulary stands for it
    token_ids: the model's id of each of the network's; None: they are the same
    """

    network: CausalLM
    taps: tuple[int, ...] = ()
    combine: Linear | None = None
    hides_first: bool = False
    token_ids: Int | None = None


@dataclass(frozen=True, slots=True)
class Fusion:
    """Makes one vector of a token's embedding and a hidden state: each normalised, a projection of both together."""

    embedding_norm: Norm
    hidden_norm: Norm
    embedding: Linear
    hidden: Linear

    def __call__(self, embedded: Float, hidden: Float, ops: Ops) -> Float:
        """embedded, hidden: [T, H] -> [T, H]."""
        first = self.embedding(self.embedding_norm(embedded, ops), ops)
        return ops.add(first, self.hidden(self.hidden_norm(hidden, ops), ops))


@dataclass(frozen=True, slots=True)
class FusedDraft:
    """A CausalLM: tokens and hidden states fused, decoder layers, a norm, the model's own output projection."""

    facts: ModelFacts
    embedding: Callable[[Int, Ops], Float]
    fusion: Fusion
    layers: tuple[DecoderLayer, ...]
    final_norm: Norm
    lm_head: AnyLinear

    def kv_cache_specs(self, block_size: int, dtype: str) -> dict[str, KVCacheSpec]:
        return layer_specs(self.layers, block_size, dtype)

    def forward(self, token_ids: Int, positions: Int, context: ForwardContext) -> Float:
        assert context.hidden is not None, "it guesses from hidden states"
        x = self.fusion(self.embedding(token_ids, context.ops), context.hidden, context.ops)
        residual: Float | None = None
        for layer in self.layers[:-1]:
            x, residual = layer(x, residual, positions, context, None)
        x, residual = self.layers[-1](x, residual, positions, context, context.output_rows)
        hidden, _ = self.final_norm.add(x, residual, context.ops)
        return hidden

    def compute_logits(self, hidden: Float, ops: Ops) -> Float:
        return self.lm_head(hidden, ops)


def check_architecture(config: HFConfig, accepted: Collection[str], method: str) -> None:
    """Raise UnsupportedError for a network of another architecture."""
    names = config.list("architectures", [])
    if not any(name in accepted for name in names):
        raise UnsupportedError(
            f"{config.source}: {method} of {', '.join(map(str, names)) or 'an unknown architecture'} are not built; "
            f"built: {', '.join(accepted)}"
        )


def check_made_for(config: HFConfig, model: ModelFacts, **sizes: int) -> None:
    """Raise ConfigError unless made for a model of these sizes, given by their names in ModelFacts."""
    for name, size in sizes.items():
        if size != getattr(model, name):
            raise ConfigError(
                f"{config.source}: made for a model with {name} {size}, but that of {model.architecture} here is "
                f"{getattr(model, name)}; take what was trained for this model"
            )


def checked_ids(config: HFConfig, name: str, token_ids: Int, vocab_size: int) -> Int:
    """Return the ids that a tensor gives. Raises CheckpointError where they are none of the model's."""
    if token_ids.min() < 0 or token_ids.max() >= vocab_size:
        raise CheckpointError(
            f"{config.source}: {name} leads to tokens {token_ids.min()} to {token_ids.max()}, beyond the vocabulary of "
            f"{vocab_size}"
        )
    return token_ids


def side_by_side(
    loading: DecoderLoading, names: Sequence[str], out_sizes: Sequence[int], bias: bool = False
) -> tuple[Linear, Linear]:
    """Read a stack of projections [O, 2 H] of two inputs as one of the left and one of the right one, to be added.

    bias: goes with the left one
    """
    size, parameters = loading.config.hidden_size, loading.parameters
    left = parameters.linear(names, out_sizes, 2 * size, bias, columns=range(size))
    return left, parameters.linear(names, out_sizes, 2 * size, False, columns=range(size, 2 * size))


def rope_table(config: DecoderConfig, max_model_len: int) -> Float | None:
    """Return the table of the layers for the model's positions, whatever the network's config says of its own."""
    rope = config.layers[0].rope
    return None if rope is None else cos_sin_table(rope, max_model_len)
