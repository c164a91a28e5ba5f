"""A request over HTTP joins the trace of its caller."""

from __future__ import annotations

import json

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from octavo.metrics import tracing
from tests.server.conftest import JSON_TYPE, Engine

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


def test_every_prompt_of_a_request_is_a_span_in_the_trace_of_the_caller(tiny_folder, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(tracing, "otlp_exporter", lambda endpoint: exporter)
    engine = Engine(
        model=str(tiny_folder), num_gpu_blocks_override=64, otlp_traces_endpoint="http://localhost/v1/traces"
    )
    server = engine.serve()
    fields = {"prompt": ["a", "b"], "max_tokens": 2, "ignore_eos": True, "request_id": "mine"}
    for is_stream in (False, True):
        body = json.dumps({**fields, "stream": is_stream}).encode()
        assert server.request("POST", "/v1/completions", body, {**JSON_TYPE, **CALLER}).status == 200
    assert server.chat(max_tokens=1).status == 200
    engine.close()
    *completions, chat = exporter.get_finished_spans()
    assert len(completions) == 4
    for span in completions:
        assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
        assert span.attributes["gen_ai.request.id"].startswith("cmpl-mine-")
    assert chat.parent is None
