"""How a model's reasoning begins and ends, as token ids: what the engine needs of a reasoning format."""

from __future__ import annotations

import msgspec


class ReasoningMarkers(msgspec.Struct, array_like=True, frozen=True):
    """The ids around a model's reasoning.

    start_token_ids: empty when the reasoning begins with the output; end_token_ids: never empty
    """

    start_token_ids: list[int]
    end_token_ids: list[int]
