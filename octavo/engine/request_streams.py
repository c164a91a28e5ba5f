"""The live requests of an AsyncLLM: text states and collectors on this side, the core's client on the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from octavo.engine.async_client import ConnectClient
from octavo.engine.input_processor import ProcessedRequest
from octavo.engine.output_collector import RequestOutputCollector
from octavo.engine.output_processor import OutputProcessor
from octavo.errors import EngineDeadError
from octavo.metrics.replica_metrics import ReplicaMetrics
from octavo.metrics.tracing import RequestTracer
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.messages import EngineCoreOutputs


class RequestStreams:
    """Starts, feeds and ends streams. Everything happens in one event loop; when it has ended, in the next one.

    gate: set unless new requests must wait
    """

    def __init__(
        self,
        connect: ConnectClient,
        tokenizer: Tokenizer | None,
        metrics: ReplicaMetrics,
        tracer: RequestTracer | None = None,
    ) -> None:
        self.client = connect(self._take_outputs, self._take_death)
        self.gate = asyncio.Event()
        self.gate.set()
        self._output_processor = OutputProcessor(tokenizer, metrics, tracer)
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def num_unfinished(self) -> int:
        """How many sequences are live."""
        return self._output_processor.num_unfinished_requests

    def attach(self) -> None:
        """Let the running event loop attend to the core."""
        if self.client.attach():
            # an event belongs to the loop in which it was first waited for
            self.gate, self._drained = _renewed(self.gate), _renewed(self._drained)

    def start(
        self,
        processed: ProcessedRequest,
        trace_headers: Mapping[str, str] | None = None,
        data_parallel_rank: int | None = None,
    ) -> RequestOutputCollector:
        """Register a request and hand it to the core. Text state first: no answer may come for an unknown request.

        trace_headers: the trace context of whoever asks; data_parallel_rank: the replica, None: the least busy
        Raises EngineDeadError when there is no core any more.
        """
        self.attach()
        collector = RequestOutputCollector(processed.request.sampling_params.output_kind)
        sequences = self._output_processor.add_request(
            processed.request, processed.external_id, processed.prompt, collector, trace_headers
        )
        collector.internal_ids = [sequence.request_id for sequence in sequences]
        self._drained.clear()
        try:
            for sequence in sequences:
                rank = self.client.add_request(sequence, data_parallel_rank)
                if rank is not None:
                    self._output_processor.placed(sequence, rank)
        except BaseException:
            self.abort(collector.internal_ids)
            raise
        return collector

    def abort(self, internal_ids: Sequence[str]) -> None:
        """End these sequences; ended ones are ignored."""
        self._output_processor.abort_sequences(internal_ids)
        self.client.abort_requests(internal_ids)
        self._note_drained()

    def abort_requests(self, external_ids: Iterable[str]) -> None:
        """End requests by the ids that users gave them."""
        self.abort(self._output_processor.sequences_of(external_ids))

    def abort_all(self) -> None:
        """End every request."""
        self.abort(self._output_processor.all_sequences())

    async def wait_until_drained(self) -> None:
        """Wait until no request is live."""
        await self._drained.wait()

    def shutdown(self) -> None:
        """End the core; streams end with an EngineDeadError. Idempotent."""
        self.client.shutdown()
        self._take_death(EngineDeadError("the engine was shut down"))
        self._output_processor.close()

    def _take_outputs(self, outputs: EngineCoreOutputs) -> None:
        processed = self._output_processor.process_outputs(outputs)
        if processed.request_ids_to_abort:
            self.client.abort_requests(processed.request_ids_to_abort)
        self._note_drained()

    def _take_death(self, error: EngineDeadError) -> None:
        self._output_processor.fail_all(error)
        self._note_drained()

    def _note_drained(self) -> None:
        if not self._output_processor.num_unfinished_requests:
            self._drained.set()


def _renewed(event: asyncio.Event) -> asyncio.Event:
    new = asyncio.Event()
    if event.is_set():
        new.set()
    return new
