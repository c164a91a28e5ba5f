"""What the user gets of a pooling request: PoolingRequestOutput and its special forms, with vLLM's names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo.errors import RequestFailedError
from octavo.types.messages import PackedArray
from octavo.types.outputs import RequestOutput

Part = TypeVar("Part")


@dataclass(slots=True)
class PoolingOutput:
    """data: float32; [H] or [labels] for a sequence, [tokens, H] or [tokens, labels] for the token tasks."""

    data: NDArray[np.float32]


@dataclass(slots=True)
class EmbeddingOutput:
    """A sequence's embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    """A probability, or score, for each label."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """How well two texts go together."""

    score: float


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Part]):
    """The result of one pooling request. num_cached_tokens: prompt tokens that came from the prefix cache"""

    request_id: str
    outputs: Part
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool

    @staticmethod
    def of(output: RequestOutput) -> PoolingRequestOutput[PoolingOutput]:
        """Read an engine's final output of a pooling request; raises RequestFailedError when it has failed."""
        (completion,) = output.outputs
        if output.pooled is None:
            reason = completion.stop_reason or completion.finish_reason
            raise RequestFailedError(f"request {output.request_id} ended without a result: {reason}")
        pooled = PoolingOutput(_unpack(output.pooled))
        return PoolingRequestOutput(
            output.request_id, pooled, output.prompt_token_ids or [], output.num_cached_tokens or 0, True
        )

    def with_outputs(self, kind: Any, part: Any) -> Any:
        """Return the same as another kind of output."""
        return kind(self.request_id, part, self.prompt_token_ids, self.num_cached_tokens, self.finished)


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The result of `LLM.embed`."""

    @staticmethod
    def from_base(base: PoolingRequestOutput[PoolingOutput]) -> EmbeddingRequestOutput:
        return base.with_outputs(EmbeddingRequestOutput, EmbeddingOutput(base.outputs.data.tolist()))  # type: ignore[no-any-return]


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The result of `LLM.classify`."""

    @staticmethod
    def from_base(base: PoolingRequestOutput[PoolingOutput]) -> ClassificationRequestOutput:
        return base.with_outputs(ClassificationRequestOutput, ClassificationOutput(base.outputs.data.tolist()))  # type: ignore[no-any-return]


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The result of `LLM.score`; prompt_token_ids are those of both texts."""


def _unpack(packed: PackedArray) -> NDArray[np.float32]:
    """Return the array, read-only."""
    values: NDArray[np.float32] = np.frombuffer(packed.data, "<f4", math.prod(packed.shape)).reshape(packed.shape)
    return values
