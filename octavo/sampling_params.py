"""vLLM's module of this name: `from octavo.sampling_params import SamplingParams` works as there."""

from __future__ import annotations

from octavo.types.sampling_params import BeamSearchParams, RepetitionDetectionParams, RequestOutputKind, SamplingParams
from octavo.types.structured_params import StructuredOutputsParams

__all__ = [
    "BeamSearchParams",
    "RepetitionDetectionParams",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
]
