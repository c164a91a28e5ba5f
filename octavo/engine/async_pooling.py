"""What AsyncLLM offers of a pooling model, as functions of the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING

from octavo.engine.output_collector import RequestOutputCollector
from octavo.types.pooling import PoolingParams
from octavo.types.pooling_outputs import PoolingOutput, PoolingRequestOutput

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM


async def encode(
    engine: AsyncLLM,
    prompt: object,
    pooling_params: PoolingParams,
    request_id: str,
    *,
    lora_request: object | None = None,
    trace_headers: Mapping[str, str] | None = None,
    priority: int = 0,
    tokenization_kwargs: Mapping[str, object] | None = None,
) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
    """Run a request on a pooling model; yield its one output.

    Raises what `generate` raises, and RequestFailedError when the request fails alone. Leaving early aborts it.
    """
    collector = await engine.add_request(
        request_id,
        prompt,
        pooling_params,
        lora_request=lora_request,
        tokenization_kwargs=tokenization_kwargs,
        trace_headers=trace_headers,
        priority=priority,
    )
    yield await pooled(engine, collector)


async def pooled(engine: AsyncLLM, collector: RequestOutputCollector) -> PoolingRequestOutput[PoolingOutput]:
    """Wait for the output of a pooling request; being cancelled aborts it."""
    try:
        return PoolingRequestOutput.of(await collector.get())
    except BaseException:
        engine.streams.abort(collector.internal_ids)
        raise
