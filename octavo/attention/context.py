"""What a model's forward needs beside its inputs: the ops, and each layer's cache and token layout for this step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.ops.interface import AttentionMetadata, Float, Int, Ops
from octavo.ops.kv_layout import KVCache


@dataclass(slots=True)
class ForwardContext:
    """Passed to every module's forward; nothing in a model reaches for globals.

    kv_caches: layer name -> cache array (see `octavo.ops.kv_layout`), bound once by the worker
    metadata: layer name -> its group's AttentionMetadata of this step
    output_rows: [R] int32, the tokens whose hidden states are wanted; None: all
    query_start: [R+1] int32, where each request's tokens begin, for layers without a cache
    hidden: [T, H], what the pipeline's stage before has computed; None in the first
    taps: layers, in order, whose input somebody reads; the number of layers stands for what the last one gives
    tapped: that, appended by the model: the residual stream [T, H], behind the last layer [R, H]
    """

    ops: Ops
    kv_caches: Mapping[str, KVCache]
    metadata: Mapping[str, AttentionMetadata]
    output_rows: Int | None = None
    query_start: Int | None = None
    hidden: Float | None = None
    taps: tuple[int, ...] = ()
    tapped: list[Float] = field(default_factory=list)
