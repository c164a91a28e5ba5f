"""Engines that the tests of reported faults share: real models loaded once, tiny random ones made on the spot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, RequestOutput, RequestOutputKind, SamplingParams
from tests.tiny_models import gemma3_config, llama_config, write_tiny_model


@pytest.fixture(scope="session")
def smol() -> LLM:
    """SmolLM2-135M-Instruct."""
    return LLM("smollm2-135m-instruct", max_model_len=2048, kv_cache_memory_bytes=2**29)


@pytest.fixture(scope="session")
def gemma() -> LLM:
    """Gemma-3-270M, a base model with sliding-window layers whose tokenizer adds a beginning-of-sequence token."""
    return LLM("gemma-3-270m", max_model_len=1024, kv_cache_memory_bytes=2**29)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with full attention."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny-llama"), llama_config())


@pytest.fixture(scope="session")
def tiny_sliding_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Gemma 3 with a window of 20 tokens in two of its three layers."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny-gemma3"), gemma3_config())


@pytest.fixture
def tiny(tiny_folder: Path) -> Callable[..., LLM]:
    """Return a function that starts an engine on the tiny Llama; options are EngineArgs fields."""

    def start(**options: Any) -> LLM:
        return LLM(str(tiny_folder), **{"max_model_len": 256, "kv_cache_memory_bytes": 2**24, **options})

    return start


def run(llm: LLM, prompt: Any, **sampling: Any) -> RequestOutput:
    """Generate for one prompt."""
    return llm.generate(prompt, SamplingParams(**sampling), use_tqdm=False)[0]


def tokens(llm: LLM, prompt: Any, **sampling: Any) -> list[int]:
    """Generate for one prompt and return the token ids."""
    return list(run(llm, prompt, **sampling).outputs[0].token_ids)


def stream(
    llm: LLM, prompts: Sequence[Any], params: SamplingParams | Sequence[SamplingParams]
) -> list[list[RequestOutput]]:
    """Run prompts with deltas; return the outputs of each prompt in the order in which they came."""
    every_params = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    engine = llm.llm_engine
    seen: dict[str, list[RequestOutput]] = {}
    for index, (prompt, one) in enumerate(zip(prompts, every_params, strict=True)):
        delta = one.clone()
        delta.output_kind = RequestOutputKind.DELTA
        seen[engine.add_request(f"stream-{index}", prompt, delta)] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen[output.request_id].append(output)
    return list(seen.values())


def metric(llm: LLM, name: str) -> float:
    """Return the sum of a counter or gauge by the end of its name."""
    return sum(one.value for one in llm.get_metrics() if one.name.endswith(name) and hasattr(one, "value"))
