"""Which part of a decoder a worker computes: its share of each layer's heads and features, and its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from octavo.distributed.group import Group, SoloGroup
from octavo.distributed.place import share
from octavo.errors import ConfigError, UnsupportedError
from octavo.models.decoder_config import DecoderConfig
from octavo.models.encoder_config import EncoderConfig
from octavo.ops.kv_layout import ALL_TOKENS, DealtTokens


@dataclass(frozen=True)
class ModelShare:
    """One worker's part. As it stands: the whole model.

    group: the ranks among which each layer is divided
    context: those of them who share sequences' keys and values; dealt: the tokens that this one keeps
    stage, num_stages: layers are divided among these, in order; the first has the embeddings, the last norm and logits
    """

    group: Group = SoloGroup()
    stage: int = 0
    num_stages: int = 1
    context: Group = SoloGroup()
    dealt: DealtTokens = ALL_TOKENS

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1

    def of(self, total: int) -> range:
        """Return this rank's share of `total` features or tokens."""
        return share(total, self.group.size, self.group.rank)

    def widths(self, total: int) -> list[int]:
        """Return how many of `total` each rank has."""
        return [len(share(total, self.group.size, rank)) for rank in range(self.group.size)]


@dataclass(frozen=True)
class HeadShare:
    """One rank's heads: query heads, and the key/value heads that these need."""

    query: range
    kv: range

    def heads_of_kv(self, group: int) -> list[int]:
        """Return how many of its query heads use each of its key/value heads, which the model has `group` for."""
        return [min(self.query.stop, (head + 1) * group) - max(self.query.start, head * group) for head in self.kv]


def head_shares(config: DecoderConfig | EncoderConfig, size: int) -> list[HeadShare]:
    """Divide the query heads evenly among ranks, of which several may need the same key/value head.

    Whole key/value heads are divided where a rank would have to keep more of them otherwise: reading them is the work.
    """
    num_kv, group = config.num_kv_heads, config.num_heads // config.num_kv_heads
    shares = []
    for rank in range(size):
        query = share(config.num_heads, size, rank)
        shares.append(HeadShare(query, range(query.start // group, (query.stop - 1) // group + 1)))
    whole = [share(num_kv, size, rank) for rank in range(size)]
    if max(len(own.kv) for own in shares) > max(map(len, whole)) and size <= num_kv:
        return [HeadShare(range(kv.start * group, kv.stop * group), kv) for kv in whole]
    return shares


def projected_features(config: DecoderConfig, heads: HeadShare) -> list[range]:
    """Return which output features of the query, key and value projections a rank with these heads computes."""
    query, kv = (range(own.start * config.head_dim, own.stop * config.head_dim) for own in (heads.query, heads.kv))
    if config.qk_norm != "all_heads":
        return [query, kv, kv]
    return [range(config.num_heads * config.head_dim), range(config.num_kv_heads * config.head_dim), kv]


def pieces_of_stack(
    share: ModelShare, sizes: Sequence[int], shares: Sequence[range], is_fused: bool
) -> list[list[range]] | None:
    """Return the output features of each projection that a rank reads, piece by piece; None: all.

    sizes, shares: of what is stacked, all features and this rank's; is_fused: the checkpoint has them as one projection
    """
    if share.group.size == 1:
        return None
    if not is_fused:
        return [[own] for own in shares]
    starts = accumulate(sizes, initial=0)
    return [[range(start + own.start, start + own.stop) for start, own in zip(starts, shares, strict=False)]]


def stage_layers(config: DecoderConfig | EncoderConfig, num_stages: int, stage: int, has_logits: bool = True) -> range:
    """Return a stage's layers, so that stages have about as many weights; the logits count as their layers' worth."""
    num_layers = len(config.layers)
    attention = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    mlp_width = sum(width * number for widths in config.mlp_widths for width, number in widths.items()) / num_layers
    layer_weights = config.hidden_size * (attention + (3 if config.gated_mlp else 2) * mlp_width)
    total = num_layers + (config.vocab_size * config.hidden_size / layer_weights if has_logits else 0)

    def border(stage: int) -> int:
        # every stage has a layer: as many as stages lie before it, and behind it
        return min(max(round(total * stage / num_stages), stage), num_layers - (num_stages - stage))

    return range(border(stage), border(stage + 1) if stage + 1 < num_stages else num_layers)


def check_sizes(config: DecoderConfig | EncoderConfig, tp_size: int, pp_size: int) -> None:
    """Raise ConfigError when a model cannot be divided among so many."""
    if pp_size > len(config.layers):
        raise ConfigError(
            f"pipeline_parallel_size={pp_size}, but {config.architecture} has {len(config.layers)} layers here, and "
            f"every stage needs one; use at most {len(config.layers)}"
        )
    if tp_size > config.num_heads:
        raise ConfigError(
            f"tensor_parallel_size={tp_size} exceeds the {config.num_heads} query heads of {config.architecture}, and "
            "every rank needs one"
        )
    smallest = min(config.hidden_size, config.vocab_size, *(min(widths) for widths in config.mlp_widths))
    if tp_size > smallest:
        raise ConfigError(f"tensor_parallel_size={tp_size} exceeds the {smallest} features of {config.architecture}")


def check_context_parallel(config: DecoderConfig, tp_size: int, dcp_size: int) -> None:
    """Raise ConfigError or UnsupportedError when ranks cannot share a sequence's keys and values by token."""
    if dcp_size == 1:
        return
    num_kv = config.num_kv_heads
    if tp_size % (num_kv * dcp_size):
        raise ConfigError(
            f"decode_context_parallel_size={dcp_size} ranks share the tokens of each of the {num_kv} key/value heads "
            f"of {config.architecture}: tensor_parallel_size must be a multiple of {num_kv * dcp_size}, got {tp_size}"
        )
    obstacles = {
        "tokens that see later ones": config.bidirectional,
        "sliding windows": any(layer.sliding_window is not None for layer in config.layers),
        "a soft cap on its attention scores": config.attention_softcap is not None,
        "scores that fall with the distance (ALiBi)": config.alibi_max_bias is not None,
        "attention sinks": config.has_sinks,
    }
    for obstacle, is_there in obstacles.items():
        if is_there:
            raise UnsupportedError(
                f"decode_context_parallel_size={dcp_size} needs full attention in all layers, and "
                f"{config.architecture} has {obstacle}; leave it at 1"
            )
