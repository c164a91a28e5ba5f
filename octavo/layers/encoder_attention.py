"""Self-attention that looks both ways and keeps nothing: all tokens of a request are computed in one step."""

from __future__ import annotations

from dataclasses import dataclass, fields

from octavo.attention.context import ForwardContext
from octavo.layers.adapted import AdaptedLinear
from octavo.layers.attention import Attention, QKNorm
from octavo.layers.linear import Linear
from octavo.layers.parallel import SharedLinear
from octavo.ops.interface import Float, Int


@dataclass(frozen=True, slots=True)
class EncoderAttention:
    """One attention layer; fields as in `Attention`, or of `Ops.encoder_attention`"""

    name: str
    qkv: Linear | AdaptedLinear
    output: Linear | AdaptedLinear | SharedLinear
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    cos_sin: Float | None = None
    qk_norm: QKNorm | None = None
    sliding_window: int | None = None
    distance_bias: Float | None = None

    @staticmethod
    def like(attention: Attention) -> EncoderAttention:
        """Return a layer with the weights of one that keeps a cache."""
        assert attention.softcap is None and attention.alibi_slopes is None, "no model that looks both ways has these"
        names = (field.name for field in fields(EncoderAttention) if field.name != "distance_bias")
        return EncoderAttention(**{name: getattr(attention, name) for name in names})

    def __call__(self, x: Float, positions: Int, context: ForwardContext) -> Float:
        """x: [T, H], positions: [T] -> [T, H]."""
        ops = context.ops
        num_rotated = self.num_heads + self.num_kv_heads
        heads = self.qkv(x, ops).reshape(x.shape[0], num_rotated + self.num_kv_heads, self.head_dim)
        query, key = heads[:, : self.num_heads], heads[:, self.num_heads : num_rotated]
        value = heads[:, num_rotated:]
        if self.qk_norm is not None:
            query, key = self.qk_norm(query, key, ops)
        if self.cos_sin is not None:
            query, key = ops.rope(query, positions, self.cos_sin), ops.rope(key, positions, self.cos_sin)
        assert context.query_start is not None, "a forward of an encoder is told where each request begins"
        attended = ops.encoder_attention(
            query, key, value, context.query_start, self.scale, self.sliding_window, self.distance_bias
        )
        return self.output(attended, ops)
