"""Octavo: an LLM inference and serving engine with vLLM's architecture and API.

The names below are imported when first used: `import octavo` itself loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config import EngineArgs
    from octavo.config import EngineArgs as AsyncEngineArgs
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.async_llm import AsyncLLM as AsyncLLMEngine
    from octavo.engine.llm_engine import LLMEngine
    from octavo.entrypoints.beam_search import BeamSearchOutput, BeamSearchSequence
    from octavo.entrypoints.llm import LLM
    from octavo.types.outputs import CompletionOutput, Logprob, RequestOutput
    from octavo.types.pooling import PoolingParams
    from octavo.types.pooling_outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from octavo.types.prompts import PromptType, TextPrompt, TokensPrompt
    from octavo.types.sampling_params import (
        BeamSearchParams,
        RepetitionDetectionParams,
        RequestOutputKind,
        SamplingParams,
    )
    from octavo.types.structured_params import StructuredOutputsParams

__version__ = "0.1.0"

_MODULES = {
    "AsyncLLM": "octavo.engine.async_llm",
    "BeamSearchOutput": "octavo.entrypoints.beam_search",
    "BeamSearchParams": "octavo.types.sampling_params",
    "BeamSearchSequence": "octavo.entrypoints.beam_search",
    "ClassificationOutput": "octavo.types.pooling_outputs",
    "ClassificationRequestOutput": "octavo.types.pooling_outputs",
    "CompletionOutput": "octavo.types.outputs",
    "EmbeddingOutput": "octavo.types.pooling_outputs",
    "EmbeddingRequestOutput": "octavo.types.pooling_outputs",
    "EngineArgs": "octavo.config",
    "LLM": "octavo.entrypoints.llm",
    "LLMEngine": "octavo.engine.llm_engine",
    "Logprob": "octavo.types.outputs",
    "PoolingOutput": "octavo.types.pooling_outputs",
    "PoolingParams": "octavo.types.pooling",
    "PoolingRequestOutput": "octavo.types.pooling_outputs",
    "PromptType": "octavo.types.prompts",
    "RepetitionDetectionParams": "octavo.types.sampling_params",
    "RequestOutput": "octavo.types.outputs",
    "RequestOutputKind": "octavo.types.sampling_params",
    "SamplingParams": "octavo.types.sampling_params",
    "ScoringOutput": "octavo.types.pooling_outputs",
    "ScoringRequestOutput": "octavo.types.pooling_outputs",
    "StructuredOutputsParams": "octavo.types.structured_params",
    "TextPrompt": "octavo.types.prompts",
    "TokensPrompt": "octavo.types.prompts",
}

# vLLM's other names for the same things
_ALIASES = {"AsyncEngineArgs": "EngineArgs", "AsyncLLMEngine": "AsyncLLM"}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "LLMEngine",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RepetitionDetectionParams",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    target = _ALIASES.get(name, name)
    module = _MODULES.get(target)
    if module is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(import_module(module), target)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
