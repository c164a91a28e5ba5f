"""Traces: one OpenTelemetry span per request, under vLLM's names. Knows what a request took, nothing of engines.

Needs the extra `octavo[otel]`; nothing of it is imported unless spans are asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from octavo import envs
from octavo.errors import ConfigError
from octavo.types.sampling_params import SamplingParams
from octavo.types.stats import RequestMetrics

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

TRACE_HEADERS = ("traceparent", "tracestate")  # W3C trace context


@dataclass(frozen=True)
class EndedRequest:
    """What a span says of a request.

    metrics: of the sequence that ended last, its first_token_latency of the one that began first
    trace_headers: the caller's trace context, or None; error: why it failed, or None
    """

    request_id: str
    params: SamplingParams
    num_prompt_tokens: int
    num_completion_tokens: int
    finish_reasons: tuple[str, ...]
    metrics: RequestMetrics
    trace_headers: Mapping[str, str] | None
    error: str | None = None


class RequestTracer:
    """Sends spans to a collector, from a thread of its own; a collector that is away costs only its spans."""

    def __init__(self, exporter: SpanExporter, model_name: str) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": "octavo"}).merge(OTELResourceDetector().detect())
        # not the process's global provider: that is the application's to choose
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("octavo")
        self._model_name = model_name

    def record(self, request: EndedRequest) -> None:
        """Send the span of a request that ends now."""
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(request.trace_headers or {})
        span = self._tracer.start_span(
            "llm_request",
            parent,
            kind=SpanKind.SERVER,
            attributes=_attributes(request, self._model_name),
            start_time=int(request.metrics.arrival_time * 1e9),
        )
        if request.error is not None:
            span.set_status(Status(StatusCode.ERROR, request.error))
        span.end()

    def close(self) -> None:
        """Send what is left, for at most a moment; idempotent."""
        closing = threading.Thread(target=self._provider.shutdown, name="octavo-traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)


def check_tracing(endpoint: str) -> None:
    """Raise ConfigError unless spans can be sent to this endpoint."""
    needed = ["opentelemetry.sdk", _exporter_module()]
    try:
        missing = [name for name in needed if find_spec(name) is None]
    except ModuleNotFoundError:  # a package above it is missing
        missing = needed
    if missing:
        raise ConfigError(
            f"otlp_traces_endpoint={endpoint!r} needs {' and '.join(missing)}: install the extra with "
            "pip install 'octavo[otel]', or leave the option out"
        )


def start_tracer(endpoint: str, model_name: str) -> RequestTracer:
    """Return a tracer that sends to a collector."""
    return RequestTracer(otlp_exporter(endpoint), model_name)


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Return what sends spans as OTEL_EXPORTER_OTLP_TRACES_PROTOCOL says."""
    from importlib import import_module

    options: dict[str, Any] = {"endpoint": endpoint}
    if envs.otlp_traces_protocol() == "grpc":
        options["insecure"] = True
    exporter: SpanExporter = import_module(_exporter_module()).OTLPSpanExporter(**options)
    return exporter


def _exporter_module() -> str:
    protocol = envs.otlp_traces_protocol()
    if protocol not in _EXPORTERS:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL must be one of {', '.join(_EXPORTERS)}, got {protocol!r}"
        )
    return _EXPORTERS[protocol]


def _attributes(request: EndedRequest, model_name: str) -> dict[str, Any]:
    """Return what the span says: GenAI semantic conventions where there are some, else vLLM's names."""
    metrics, params = request.metrics, request.params
    attributes: dict[str, Any] = {
        "gen_ai.request.id": request.request_id,
        "gen_ai.request.n": params.n,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.response.model": model_name,
        "gen_ai.response.finish_reasons": request.finish_reasons,
        "gen_ai.usage.num_sequences": len(request.finish_reasons),
        "gen_ai.usage.prompt_tokens": request.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": request.num_completion_tokens,
        "gen_ai.latency.e2e": time.time() - metrics.arrival_time,
    }
    if params.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = params.max_tokens
    if metrics.scheduled_ts:  # it came so far
        attributes["gen_ai.latency.time_in_queue"] = metrics.queued_time_s
    if metrics.first_token_ts:
        attributes["gen_ai.latency.time_to_first_token"] = metrics.first_token_latency
        attributes["gen_ai.latency.time_in_model_prefill"] = metrics.prefill_time_s
        attributes["gen_ai.latency.time_in_model_decode"] = metrics.decode_time_s
        attributes["gen_ai.latency.time_in_model_inference"] = metrics.inference_time_s
    return attributes


_CLOSE_TIMEOUT_S = 2.0
_EXPORTERS = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
