"""Several server processes in front of the same engine: whichever is asked, the answer is the engine's."""

from __future__ import annotations

import gzip
import http.client
import http.server
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.engine.processes import children_of, is_alive, wait_until
from tests.lora.adapters import write_adapter
from tests.server import test_process
from tests.server.conftest import JSON_TYPE
from tests.server.test_process import ENGINE_FLAGS, Running, octavo, outcome
from tests.tiny_models import llama_config, write_tiny_model

COUNT = 2
LONG = {"prompt": [5, 6, 7], "max_tokens": 480, "ignore_eos": True, "seed": 3, "logprobs": 1}


class Served(Running):
    """A server of several processes, and a connection to each of them."""

    def __init__(self, folder: Path, *flags: str, environment: dict[str, str] | None = None) -> None:
        processes = ("--api-server-count", str(COUNT), "--port", "0")
        super().__init__(str(folder), *processes, *flags, environment=environment)
        children = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children_of(self.process.pid)}
        self.servers = [pid for pid, command in children.items() if b"server_process import" in command]
        self.cores = [pid for pid, command in children.items() if b"core_proc import" in command]

    def each(self) -> list[http.client.HTTPConnection]:
        """Return a connection to each process."""
        by_process: dict[str, http.client.HTTPConnection] = {}
        for _ in range(200):
            connection = self.connect()
            _, state = ask(connection, "GET", "/octavo/state")
            by_process.setdefault(state["process_id"], connection)
            if len(by_process) == COUNT:
                return list(by_process.values())
        raise AssertionError("one process gets all connections")


def ask(connection: http.client.HTTPConnection, method: str, path: str, **fields: Any) -> tuple[int, Any]:
    connection.request(method, path, json.dumps(fields) if fields else None, JSON_TYPE)
    response = connection.getresponse()
    data = response.read()
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.status, json.loads(data) if is_json and data else data.decode()


def metric(connection: http.client.HTTPConnection, name: str) -> float:
    _, text = ask(connection, "GET", "/metrics")
    return sum(float(value) for value in re.findall(rf"^octavo:{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))


@pytest.fixture(scope="module")
def served(tiny_folder: Path) -> Iterator[Served]:
    server = Served(tiny_folder, "-dp", "2", "--max-num-seqs", "8")
    yield server
    server.process.kill()
    server.process.wait()
    wait_until(lambda: not any(map(is_alive, (*server.servers, *server.cores))))  # nothing outlives the parent


def test_every_process_answers_and_metrics_are_of_all(served: Served):
    connections = served.each()
    before = metric(connections[0], "generation_tokens_total")
    answers = [ask(one, "POST", "/v1/completions", prompt="abc", max_tokens=6, temperature=0) for one in connections]
    assert [status for status, _ in answers] == [200] * COUNT
    assert len({answer["choices"][0]["text"] for _, answer in answers}) == 1
    for one in connections:
        assert metric(one, "generation_tokens_total") == before + 6 * COUNT
        assert metric(one, "iteration_tokens_total_count") > 0
        assert metric(one, "engine_up") == 2 and ask(one, "GET", "/health")[0] == 200


def test_pausing_sleep_and_cache_reset_hold_for_all(served: Served):
    first, second = served.each()
    assert ask(first, "POST", "/sleep?level=1")[0] == 200
    assert [ask(one, "GET", "/is_sleeping")[1]["is_sleeping"] for one in (first, second)] == [True, True]
    answers: list[tuple[int, Any]] = []
    waiting = threading.Thread(
        target=lambda: answers.append(ask(second, "POST", "/v1/completions", prompt="abc", max_tokens=4))
    )
    waiting.start()
    waiting.join(0.3)
    assert not answers
    assert ask(first, "POST", "/wake_up")[0] == 200
    waiting.join(20)
    assert answers[0][0] == 200
    assert ask(second, "POST", "/reset_prefix_cache")[0] == 200


def test_a_response_stored_by_one_process_is_known_to_all(served: Served):
    first, second = served.each()
    stored = ask(first, "POST", "/v1/responses", input="hi", max_output_tokens=4)[1]
    assert ask(second, "GET", f"/v1/responses/{stored['id']}")[1]["output"] == stored["output"]
    fields = {"input": "and?", "max_output_tokens": 4, "temperature": 0.0, "previous_response_id": stored["id"]}
    usages = [ask(one, "POST", "/v1/responses", **fields)[1]["usage"]["input_tokens"] for one in (first, second)]
    assert usages[0] == usages[1] > stored["usage"]["input_tokens"]
    assert ask(second, "DELETE", f"/v1/responses/{stored['id']}")[0] == 200
    assert [ask(one, "GET", f"/v1/responses/{stored['id']}")[0] for one in (first, second)] == [404, 404]


def test_grammars_and_replicas_by_name_work_in_each_process(served: Served):
    for one in served.each():
        status, answer = ask(
            one, "POST", "/v1/completions", prompt="abc", max_tokens=8, structured_outputs={"choice": ["yes", "no"]}
        )
        assert status == 200 and answer["choices"][0]["text"] in ("yes", "no")
        one.request("POST", "/v1/completions", b'{"prompt": "a"}', {**JSON_TYPE, "X-data-parallel-rank": "2"})
        reply = one.getresponse()
        assert reply.status == 400 and b"from 0 to 1" in reply.read()


@pytest.mark.native_ops
def test_a_killed_core_costs_the_requests_of_no_process_anything(served: Served):
    expected = ask(served.connect(), "POST", "/v1/completions", **LONG)[1]["choices"]
    connections = [one for _ in range(4) for one in served.each()]
    answers: list[tuple[int, Any]] = []
    clients = [
        threading.Thread(target=lambda one=one: answers.append(ask(one, "POST", "/v1/completions", **LONG)))
        for one in connections
    ]
    for client in clients:
        client.start()
    watch = served.connect()
    wait_until(lambda: metric(watch, "num_requests_running") >= 4)
    os.kill(served.cores[1], signal.SIGKILL)
    for client in clients:
        client.join(60)
    assert [status for status, _ in answers] == [200] * len(connections)
    assert all(answer["choices"] == expected for _, answer in answers)
    wait_until(lambda: metric(watch, "engine_up") == 2)
    served.cores = [pid for pid in children_of(served.process.pid) if pid not in served.servers]


@pytest.mark.native_ops
def test_a_killed_server_process_is_replaced_and_its_requests_are_aborted(served: Served):
    first, second = served.each()
    counted = metric(first, "generation_tokens_total")
    process_id = ask(second, "GET", "/octavo/state")[1]["process_id"]

    def lose() -> None:
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(second, "POST", "/v1/completions", **{**LONG, "n": 4})

    client = threading.Thread(target=lose)
    client.start()
    wait_until(lambda: metric(first, "num_requests_running") == 4)
    os.kill(process_id, signal.SIGKILL)
    client.join(20)
    assert not client.is_alive()
    wait_until(lambda: metric(first, "num_requests_running") == 0 and metric(first, "kv_cache_usage_perc") == 0)
    assert metric(first, "generation_tokens_total") >= counted
    wait_until(lambda: any("died (signal 9); another" in line for line in served.log))
    new = {ask(one, "GET", "/octavo/state")[1]["process_id"] for one in served.each()}
    assert process_id not in new and len(new) == COUNT
    served.servers = list(new)


def test_a_stopped_process_holds_up_no_metrics_and_no_pause_and_obeys_when_it_goes_on(served: Served):
    first, second = served.each()
    counted = metric(second, "generation_tokens_total")
    process_id = ask(second, "GET", "/octavo/state")[1]["process_id"]
    os.kill(process_id, signal.SIGSTOP)
    try:
        assert metric(first, "generation_tokens_total") == counted
        assert ask(first, "POST", "/sleep?level=0")[0] == 200
    finally:
        os.kill(process_id, signal.SIGCONT)
    wait_until(lambda: ask(second, "GET", "/is_sleeping")[1]["is_sleeping"])
    assert ask(second, "POST", "/wake_up")[0] == 200


def test_connections_that_wait_for_a_process_that_hangs_are_served_by_the_next_one(tiny_folder: Path, monkeypatch):
    patch = "import octavo.entrypoints.openai.server_processes as s; s._PROD_INTERVAL_S, s._MAX_UNANSWERED = 0.3, 4; "
    monkeypatch.setattr(test_process, "COMMAND", patch + test_process.COMMAND)
    server = Served(tiny_folder)
    stopped = server.servers[0]
    os.kill(stopped, signal.SIGSTOP)
    answers: list[tuple[int, Any]] = []
    clients = [
        threading.Thread(target=lambda: answers.append(ask(server.connect(), "GET", "/octavo/state")))
        for _ in range(16)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join(30)
    assert [status for status, _ in answers] == [200] * 16
    processes = {state["process_id"] for _, state in answers}
    assert stopped not in processes and len(processes) == COUNT  # by chance one in 2**15 times by the other alone
    assert sum("has been silent for" in line for line in server.log) == 1
    assert server.stop() == 0


def test_processes_that_have_nothing_to_do_are_not_taken_for_silent_ones(tiny_folder: Path, monkeypatch):
    patch = "import octavo.entrypoints.openai.server_processes as s; s._PROD_INTERVAL_S, s._MAX_UNANSWERED = 0.1, 10; "
    monkeypatch.setattr(test_process, "COMMAND", patch + test_process.COMMAND)
    server = Served(tiny_folder)
    time.sleep(3)
    assert not any("has been silent for" in line for line in server.log)
    assert all(is_alive(pid) for pid in server.servers)
    assert server.stop() == 0


def test_requests_of_all_processes_are_spans_in_the_traces_of_their_callers(tiny_folder: Path):
    spans: list[Any] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            export = ExportTraceServiceRequest.FromString(body)
            spans.extend(s for r in export.resource_spans for scope in r.scope_spans for s in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_address[1]}/v1/traces"
    environment = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    server = Served(tiny_folder, "--otlp-traces-endpoint", endpoint, environment=environment)
    callers = [f"{number:032x}" for number in range(1, COUNT + 1)]
    for caller, connection in zip(callers, server.each(), strict=True):
        headers = {**JSON_TYPE, "traceparent": f"00-{caller}-b7ad6b7169203331-01"}
        fields = {"prompt": "abc", "max_tokens": 3, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(fields), headers)
        assert connection.getresponse().status == 200
    assert server.stop() == 0  # what is not sent yet is sent now
    collector.shutdown()
    assert sorted(span.trace_id.hex() for span in spans) == callers
    for span in spans:
        names = {attribute.key: attribute.value.int_value for attribute in span.attributes}
        assert span.name == "llm_request" and names["gen_ai.usage.completion_tokens"] == 3


def test_requests_finish_when_the_server_is_stopped(tiny_folder: Path, tmp_path: Path):
    path = tmp_path / "s.sock"
    server = Served(tiny_folder, "--uds", str(path))
    answers: list[tuple[int, Any]] = []
    clients = [
        threading.Thread(target=lambda: answers.append(ask(server.connect(), "POST", "/v1/completions", **LONG)))
        for _ in range(4)
    ]
    for client in clients:
        client.start()
    watch = server.connect()
    wait_until(lambda: metric(watch, "num_requests_running") == 4)
    watch.close()
    assert server.stop() == 0
    for client in clients:
        client.join(20)
    assert [status for status, _ in answers] == [200] * 4
    assert {answer["choices"][0]["finish_reason"] for _, answer in answers} == {"length"}
    assert not path.exists() and not any(map(is_alive, (*server.servers, *server.cores)))


def test_adapters_are_those_of_all_also_of_a_process_that_starts_later(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("OCTAVO_ALLOW_RUNTIME_LORA_UPDATING", "1")
    model = write_tiny_model(tmp_path / "model", llama_config())
    one, two = (write_adapter(tmp_path / name, model, seed=seed) for seed, name in enumerate(("one", "two")))
    server = Served(model, "--enable-lora", "--max-loras", "2", "--lora-modules", f"one={one}")
    fields = {"prompt": list(range(30, 60)), "max_tokens": 8, "temperature": 0, "ignore_eos": True}

    def says(connection: http.client.HTTPConnection, name: str) -> str | None:
        status, answer = ask(connection, "POST", "/v1/completions", model=name, **fields)
        return answer["choices"][0]["text"] if status == 200 else None

    first, second = server.each()
    assert says(first, "one") == says(second, "one") is not None
    assert ask(first, "POST", "/v1/load_lora_adapter", lora_name="two", lora_path=str(two))[0] == 200
    expected = says(first, "two")
    assert expected == says(second, "two") not in (None, says(second, "one"))
    assert ask(second, "POST", "/v1/load_lora_adapter", lora_name="two", lora_path=str(two))[0] == 400
    write_adapter(tmp_path / "two", model, seed=7)
    assert says(first, "two") == says(second, "two") == expected
    in_place = {"lora_name": "two", "lora_path": str(two), "load_inplace": True}
    assert ask(second, "POST", "/v1/load_lora_adapter", **in_place)[0] == 200
    assert says(first, "two") == says(second, "two") not in (None, expected)
    expected = says(first, "two")
    assert ask(second, "POST", "/v1/unload_lora_adapter", lora_name="one")[0] == 200
    assert says(first, "one") is None
    for process_id in server.servers:
        os.kill(process_id, signal.SIGKILL)
    wait_until(lambda: sum("another takes its place" in line for line in server.log) == COUNT)
    for connection in server.each():
        assert says(connection, "two") == expected and says(connection, "one") is None
    assert server.stop() == 0


def test_replicas_on_another_host_serve_all_processes(tiny_folder: Path, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    shared = ("-dp", "2", "-dpl", "1", "-dpa", "127.0.0.1", "-dpp", port)
    host = octavo("serve", str(tiny_folder), "--headless", "-dpr", "1", *shared, *ENGINE_FLAGS)
    server = Served(tiny_folder, *shared)
    try:
        for connection in server.each():
            for rank in ("0", "1"):
                headers = {**JSON_TYPE, "X-data-parallel-rank": rank}
                connection.request("POST", "/v1/completions", b'{"prompt": "abc", "max_tokens": 3}', headers)
                reply = connection.getresponse()
                assert reply.status == 200, reply.read()
                reply.read()
        _, text = ask(connection, "GET", "/metrics")
        finished = re.findall(r'^octavo:request_generation_tokens_count{.*engine="(.)"} (\S+)$', text, re.M)
        assert finished == [("0", "2"), ("1", "2")]
        assert server.stop() == 0
        assert host.wait(20) == 0
    finally:
        host.kill()
        host.communicate()


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--api-server-count", "0"), "at least 1"),
        (("--api-server-count", "2", "--max-model-len", "100000"), "max_model_len"),
        (("--api-server-count", "2", "--lora-modules", "a=/nowhere"), "lora"),
    ],
)
def test_what_is_wrong_is_said_once_and_ends_all(tiny_folder: Path, flags: tuple[str, ...], word: str):
    code, output = outcome("serve", str(tiny_folder), "--port", "0", *flags)
    assert code == 2 and word in output.lower() and "Traceback" not in output, output
