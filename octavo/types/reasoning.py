"""How a model's reasoning begins and ends, as token ids: what the engine needs of a reasoning format."""

from __future__ import annotations

import msgspec


class ReasoningMarkers(msgspec.Struct, array_like=True, frozen=True):
    """The ids around a model's reasoning, and where an output begins.

    start_token_ids: empty when nothing but the prompt can begin it; end_token_ids: never empty
    begins_inside: the output begins inside the reasoning
    may_begin: it begins outside, and its first tokens may be the start
    """

    start_token_ids: list[int]
    end_token_ids: list[int]
    begins_inside: bool = False
    may_begin: bool = False
