"""From the sequences of live requests to one span per request, told when its last sequence has ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from octavo.config import OctavoConfig
from octavo.engine.request_state import RequestState
from octavo.metrics import tracing
from octavo.metrics.tracing import TRACE_HEADERS, EndedRequest, RequestTracer
from octavo.types.request import EngineCoreRequest, FinishReason
from octavo.types.sampling_params import SamplingParams


def tracer_of(config: OctavoConfig) -> RequestTracer | None:
    """Return what sends the spans that the options ask for, or None."""
    endpoint = config.observability.otlp_traces_endpoint
    return None if endpoint is None else tracing.start_tracer(endpoint, config.model.served_model_name)


@dataclass(slots=True)
class _OpenTrace:
    """A request whose sequences have not all ended. params: with the request's own n"""

    external_id: str
    params: SamplingParams
    trace_headers: Mapping[str, str] | None
    num_open: int
    num_tokens: int = 0
    first_token_latency: float = float("inf")
    finish_reasons: list[tuple[int, str]] = field(default_factory=list)  # with the sequence's index
    error: str | None = None


class RequestTraces:
    """Keeps what the spans of live requests need."""

    def __init__(self, tracer: RequestTracer) -> None:
        self._tracer = tracer
        self._open: dict[str, _OpenTrace] = {}  # by internal id; sequences of one request share one

    def started(
        self,
        params: SamplingParams,
        sequences: Sequence[EngineCoreRequest],
        external_id: str,
        trace_headers: Mapping[str, str] | None,
    ) -> None:
        """Note a request. params: as it came, before it was split into sequences"""
        context = (
            {name: trace_headers[name] for name in TRACE_HEADERS if name in trace_headers} if trace_headers else None
        )
        trace = _OpenTrace(external_id, params, context, len(sequences))
        self._open.update((sequence.request_id, trace) for sequence in sequences)

    def ended(self, state: RequestState) -> None:
        """Note the end of a sequence; the last one of a request sends its span."""
        trace = self._open.pop(state.request.request_id)
        trace.num_open -= 1
        trace.num_tokens += state.metrics.num_generation_tokens
        trace.finish_reasons.append((state.index, str(state.finish_reason)))
        if state.metrics.first_token_ts:
            trace.first_token_latency = min(trace.first_token_latency, state.metrics.first_token_latency)
        if state.finish_reason is FinishReason.ERROR:
            trace.error = str(state.stop_reason)
        if trace.num_open:
            return
        self._tracer.record(
            EndedRequest(
                request_id=trace.external_id,
                params=trace.params,
                num_prompt_tokens=len(state.request.prompt_token_ids),
                num_completion_tokens=trace.num_tokens,
                finish_reasons=tuple(reason for _, reason in sorted(trace.finish_reasons)),
                metrics=dataclasses.replace(state.metrics, first_token_latency=trace.first_token_latency),
                trace_headers=trace.trace_headers,
                error=trace.error,
            )
        )

    def close(self) -> None:
        """Send what is left."""
        self._tracer.close()
