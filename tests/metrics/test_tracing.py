"""One span per request, under the names that tools for vLLM know, in the trace of whoever asked."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from octavo import LLM, AsyncLLM, EngineArgs, SamplingParams
from octavo.config import EngineArgs as Options
from octavo.engine.resolve import resolve
from octavo.errors import ConfigError
from octavo.metrics import tracing
from tests.tiny_models import llama_config, write_tiny_model

SMALL = {"kv_cache_memory_bytes": 2**22, "max_num_batched_tokens": 64, "max_num_seqs": 8}
ENDPOINT = "http://localhost:4318/v1/traces"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(write_tiny_model(tmp_path_factory.mktemp("traced") / "tiny", llama_config()))


@pytest.fixture
def exporter(monkeypatch) -> Iterator[InMemorySpanExporter]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    memory = InMemorySpanExporter()
    monkeypatch.setattr(tracing, "otlp_exporter", lambda endpoint: memory)
    return memory


def test_a_request_of_llm_has_a_span_with_what_it_took(tiny, exporter):
    llm = LLM(tiny, **SMALL, otlp_traces_endpoint=ENDPOINT)
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5, ignore_eos=True, temperature=0.5, top_p=0.9), use_tqdm=False)
    llm.llm_engine.shutdown()
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.parent) == ("llm_request", SpanKind.SERVER, None)
    assert span.resource.attributes["service.name"] == "octavo"
    attributes = dict(span.attributes)
    latencies = {name: attributes.pop(name) for name in list(attributes) if name.startswith("gen_ai.latency.")}
    assert attributes == {
        "gen_ai.request.id": "0",
        "gen_ai.request.n": 1,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.response.model": tiny,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.completion_tokens": 5,
    }
    assert {name.rpartition(".")[2] for name in latencies} == {
        *("e2e", "time_to_first_token", "time_in_queue"),
        *("time_in_model_prefill", "time_in_model_decode", "time_in_model_inference"),
    }
    assert all(seconds >= 0 for seconds in latencies.values())
    assert latencies["gen_ai.latency.e2e"] >= latencies["gen_ai.latency.time_in_model_inference"]
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(latencies["gen_ai.latency.e2e"], abs=0.1)


def test_several_sequences_are_one_span(tiny, exporter):
    llm = LLM(tiny, **SMALL, otlp_traces_endpoint=ENDPOINT)
    params = SamplingParams(n=3, max_tokens=4, ignore_eos=True, temperature=1.0)
    llm.generate([[1, 2], [3, 4, 5]], params, use_tqdm=False)
    llm.llm_engine.shutdown()
    spans = sorted(exporter.get_finished_spans(), key=lambda span: span.attributes["gen_ai.request.id"])
    assert [span.attributes["gen_ai.usage.prompt_tokens"] for span in spans] == [2, 3]
    assert all(span.attributes["gen_ai.usage.completion_tokens"] == 12 for span in spans)
    assert all(span.attributes["gen_ai.response.finish_reasons"] == ("length",) * 3 for span in spans)
    assert all(span.attributes["gen_ai.request.n"] == 3 for span in spans)


def test_a_span_belongs_to_the_trace_of_its_caller_and_tells_of_aborts(tiny, exporter):
    async def scenario() -> None:
        engine = AsyncLLM.from_engine_args(EngineArgs(model=tiny, **SMALL, otlp_traces_endpoint=ENDPOINT))
        headers = {"traceparent": CALLER, "tracestate": "vendor=1", "cookie": "secret"}
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        stream = engine.generate([1, 2, 3], params, "left", trace_headers=headers)
        await anext(stream)
        await stream.aclose()
        bad = engine.generate([1], SamplingParams(max_tokens=2), "bad", trace_headers={"traceparent": "nonsense"})
        assert [output async for output in bad]
        engine.shutdown()

    asyncio.run(scenario())
    left, bad = exporter.get_finished_spans()
    assert (f"{left.parent.trace_id:032x}", f"{left.parent.span_id:016x}") == tuple(CALLER.split("-")[1:3])
    assert left.context.trace_id == left.parent.trace_id
    assert left.context.trace_state.get("vendor") == "1"
    assert left.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert "secret" not in left.to_json()
    assert (bad.parent, bad.attributes["gen_ai.request.id"]) == (None, "bad")


def test_a_request_that_fails_has_a_span_that_says_why(tiny, exporter):
    llm = LLM(tiny, **SMALL, otlp_traces_endpoint=ENDPOINT)
    core = llm.llm_engine.engine_core.engine_core

    def fail(step: object) -> object:
        raise RuntimeError("no such luck")

    core.executor.execute_model = fail
    (output,) = llm.generate([[1, 2]], SamplingParams(), use_tqdm=False)
    llm.llm_engine.shutdown()
    assert output.outputs[0].finish_reason == "error"
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert "no such luck" in span.status.description
    assert "gen_ai.latency.time_to_first_token" not in span.attributes


def test_spans_arrive_at_a_collector(tiny, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-own-name")
    received: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.path.encode() + self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            return None

    collector = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    llm = LLM(tiny, **SMALL, otlp_traces_endpoint=endpoint)
    llm.generate([[1, 2]], SamplingParams(max_tokens=1), use_tqdm=False)
    llm.llm_engine.shutdown()
    collector.shutdown()
    collector.server_close()
    assert len(received) == 1
    for part in (b"/v1/traces", b"my-own-name", b"llm_request", b"gen_ai.latency.time_to_first_token"):
        assert part in received[0]


def test_a_missing_extra_is_refused_with_the_way_to_it(tiny, monkeypatch):
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs opentelemetry.sdk and .*pip install 'octavo\[otel\]'"):
        resolve(Options(model=tiny, otlp_traces_endpoint=ENDPOINT))


def test_a_protocol_that_nobody_knows_is_refused(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "pigeons")
    with pytest.raises(ConfigError, match="grpc, http/protobuf, got 'pigeons'"):
        tracing.check_tracing(ENDPOINT)


def test_without_the_option_nothing_of_it_is_imported(monkeypatch):
    import subprocess
    import sys

    code = "import octavo.engine.async_llm, octavo.engine.llm_engine, sys; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
