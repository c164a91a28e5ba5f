"""Requests that are checked already, and those of pooling models: the part of AsyncLLM that servers run them by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping

from octavo.engine.input_processor import ProcessedRequest
from octavo.engine.output_collector import RequestOutputCollector
from octavo.engine.request_streams import RequestStreams
from octavo.types.pooling import PoolingParams
from octavo.types.pooling_outputs import PoolingOutput, PoolingRequestOutput


class AsyncPooling(ABC):
    """What AsyncLLM offers of a pooling model."""

    _streams: RequestStreams

    @abstractmethod
    async def add_request(
        self,
        request_id: str,
        prompt: object,
        params: PoolingParams,
        *,
        lora_request: object | None = None,
        tokenization_kwargs: Mapping[str, object] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> RequestOutputCollector:
        """Check a request and start it."""

    async def add_processed(
        self,
        processed: ProcessedRequest,
        trace_headers: Mapping[str, str] | None = None,
        data_parallel_rank: int | None = None,
    ) -> RequestOutputCollector:
        """Start a request that the input processor has checked; outputs come out of the collector."""
        self._streams.attach()
        await self._streams.gate.wait()
        return self._streams.start(processed, trace_headers, data_parallel_rank)

    async def encode(
        self,
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
        collector = await self.add_request(
            request_id,
            prompt,
            pooling_params,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
            priority=priority,
        )
        yield await self.pooled(collector)

    async def pooled(self, collector: RequestOutputCollector) -> PoolingRequestOutput[PoolingOutput]:
        """Wait for the output of a pooling request; being cancelled aborts it."""
        try:
            return PoolingRequestOutput.of(await collector.get())
        except BaseException:
            self._streams.abort(collector.internal_ids)
            raise
