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
    from octavo.inputs import PromptType, TextPrompt, TokensPrompt
    from octavo.outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from octavo.pooling_params import PoolingParams
    from octavo.sampling_params import (
        BeamSearchParams,
        RepetitionDetectionParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )
    from octavo.types.outputs import Logprob

__version__ = "0.1.0"

_NAMES = {
    "octavo.config": "EngineArgs",
    "octavo.engine.async_llm": "AsyncLLM",
    "octavo.engine.llm_engine": "LLMEngine",
    "octavo.entrypoints.beam_search": "BeamSearchOutput BeamSearchSequence",
    "octavo.entrypoints.llm": "LLM",
    "octavo.inputs": "PromptType TextPrompt TokensPrompt",
    "octavo.outputs": "ClassificationOutput ClassificationRequestOutput CompletionOutput EmbeddingOutput "
    "EmbeddingRequestOutput PoolingOutput PoolingRequestOutput RequestOutput ScoringOutput ScoringRequestOutput",
    "octavo.pooling_params": "PoolingParams",
    "octavo.sampling_params": "BeamSearchParams RepetitionDetectionParams RequestOutputKind SamplingParams "
    "StructuredOutputsParams",
    "octavo.types.outputs": "Logprob",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

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
