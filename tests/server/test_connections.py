"""Clients that go away, read slowly or share ids; keys, origins, load limits."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo.entrypoints.openai.run import uvicorn_config
from tests.server.conftest import JSON_TYPE, Engine, Server, wait_until

LONG = {"prompt": "abc", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


def unfinished(engine: Engine) -> int:
    return engine.llm.get_num_unfinished_requests()


def open_request(server: Server, path: str = "/v1/completions", **fields) -> socket.socket:
    """Send a request and return its connection."""
    body = json.dumps(fields).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


@pytest.fixture(scope="module")
def slow_engine():
    """SmolLM2 takes long enough over an answer for a client to leave in the middle."""
    from octavo.loader.catalog import pull

    path = pull("smollm2-135m-instruct", lambda progress: None)
    engine = Engine(model=str(path), max_model_len=1024, num_gpu_blocks_override=256, max_num_seqs=2)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def slow(slow_engine: Engine) -> Server:
    return slow_engine.serve(("slow",))


# -- going away --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"n": 3, "temperature": 1}, {"prompt": ["abc", "def", "x"]}])
def test_a_client_that_goes_away_frees_what_it_used(slow_engine: Engine, slow: Server, stream: bool, fields: dict):
    connection = open_request(slow, **{**LONG, "stream": stream, **fields})
    wait_until(lambda: unfinished(slow_engine) > 0)
    connection.close()
    wait_until(lambda: unfinished(slow_engine) == 0)
    assert slow.get("/load").json == {"server_load": 0}
    assert slow.complete(prompt="abc", max_tokens=1).status == 200


def test_aborts_are_counted_and_gauges_return_to_zero(slow_engine: Engine, slow: Server):
    def aborted() -> int:
        lines = slow.get("/metrics").body.decode().splitlines()
        (line,) = (line for line in lines if "request_success_total" in line and 'finished_reason="abort"' in line)
        return int(line.split()[-1])

    before = aborted()
    connections = [open_request(slow, **LONG, stream=True) for _ in range(5)]
    wait_until(lambda: unfinished(slow_engine) == 5)
    for connection in connections:
        connection.close()
    wait_until(lambda: unfinished(slow_engine) == 0)
    assert aborted() == before + 5
    slow.complete(prompt="abc", max_tokens=2)  # a step tells the gauges
    wait_until(lambda: b"num_requests_running" in slow.get("/metrics").body)
    running = [line for line in slow.get("/metrics").body.decode().splitlines() if ":num_requests_running{" in line]
    wait_until(lambda: running[0].endswith(" 0.0"))


def test_a_reader_that_stops_reading_delays_nobody_and_gets_everything_later(tiny_engine: Engine, tiny: Server):
    fields = {**LONG, "stream": True, "logprobs": 5, "return_token_ids": True}
    whole = tiny.complete(**{**fields, "stream": False}).json["choices"][0]
    stopped = open_request(tiny, **fields)
    wait_until(lambda: unfinished(tiny_engine) == 0)  # the engine is done with it
    assert tiny.complete(prompt="abc", max_tokens=3).status == 200
    data = b""
    while b"[DONE]" not in data:
        data += stopped.recv(65536)
    stopped.close()
    pieces = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for piece in pieces for choice in piece["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [i for choice in choices for i in choice["token_ids"]] == whole["token_ids"]


def test_a_connection_serves_many_requests(tiny: Server):
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", tiny.port, timeout=20)
    for stream in (True, False, True):
        body = json.dumps({"prompt": "abc", "max_tokens": 3, "stream": stream})
        connection.request("POST", "/v1/completions", body, JSON_TYPE)
        assert connection.getresponse().read()
    connection.close()


# -- ids ---------------------------------------------------------------------------------------------------------------


def test_requests_with_the_same_id_are_not_mixed_up(tiny: Server):
    prompts = ["import os", "return the", "x = 1", "def test"] * 3
    fields = {"max_tokens": 40, "ignore_eos": True, "temperature": 0}
    alone = {prompt: tiny.complete(prompt=prompt, **fields).json["choices"][0]["text"] for prompt in prompts}

    def together(prompt: str) -> tuple[str, str]:
        body = json.dumps({"prompt": prompt, "request_id": "same", **fields}).encode()
        answer = tiny.request("POST", "/v1/completions", body, {**JSON_TYPE, "X-Request-Id": "same"}).json
        return answer["id"], answer["choices"][0]["text"]

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(together, prompts)) == [("cmpl-same", alone[prompt]) for prompt in prompts]


def test_leaving_a_request_does_not_end_another_with_its_id(slow_engine: Engine, slow: Server):
    fields = {**LONG, "max_tokens": 60, "request_id": "same"}
    leaver = open_request(slow, **{**fields, "stream": True})
    wait_until(lambda: unfinished(slow_engine) == 1)
    threading.Timer(0.2, leaver.close).start()
    answer = slow.complete(**fields).json
    assert answer["usage"]["completion_tokens"] == 60 and answer["choices"][0]["finish_reason"] == "length"


def test_ids_come_back_in_the_head_when_asked_for(tiny_engine: Engine, tiny: Server):
    named = tiny_engine.serve(enable_request_id_headers=True)
    body = b'{"prompt": "abc", "max_tokens": 1}'
    reply = named.request("POST", "/v1/completions", body, {**JSON_TYPE, "X-Request-Id": "mine"})
    assert reply.headers["x-request-id"] == "mine" and reply.json["id"] == "cmpl-mine"
    assert named.get("/health").headers["x-request-id"]
    assert "x-request-id" not in tiny.get("/health").headers


# -- keys and origins --------------------------------------------------------------------------------------------------


def test_keys_guard_everything_but_the_open_paths(tiny_engine: Engine):
    server = tiny_engine.serve(api_key=["secret", "other"])
    for path in ("/health", "/ping", "/version", "/metrics", "/load", "/docs", "/openapi.json"):
        assert server.get(path).status == 200
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/sleep"), ("GET", "/nothing")):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "secret"},
            {"Authorization": "Basic secret"},
        ):
            reply = server.request(method, path, b"{}" if method == "POST" else None, {**JSON_TYPE, **headers})
            assert reply.status == 401 and reply.error["type"] == "AuthenticationError"
            assert "secret" not in reply.body.decode() and reply.headers["www-authenticate"] == "Bearer"
    for key in ("secret", "other"):
        assert server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"}).status == 200
        assert server.request("GET", "/v1/models", headers={"Authorization": f"bearer {key}"}).status == 200


def test_foreign_pages_may_not_post_unless_allowed(tiny_engine: Engine, tiny: Server):
    body = b'{"prompt": "abc", "max_tokens": 1}'
    foreign = {**JSON_TYPE, "Origin": "http://evil.example"}
    assert tiny.request("POST", "/v1/completions", body, foreign).status == 403
    assert tiny.request("POST", "/reset_prefix_cache", None, {"Origin": "http://evil.example"}).status == 403
    own = {**JSON_TYPE, "Origin": tiny.url}
    assert tiny.request("POST", "/v1/completions", body, own).status == 200
    open_server = tiny_engine.serve(allowed_origins=["http://good.example"], api_key=["k"])
    allowed = {"Origin": "http://good.example", "Access-Control-Request-Method": "POST"}
    preflight = open_server.request("OPTIONS", "/v1/completions", headers=allowed)
    assert preflight.status == 200 and preflight.headers["access-control-allow-origin"] == "http://good.example"
    refused = open_server.request("OPTIONS", "/v1/completions", headers={**allowed, "Origin": "http://evil.example"})
    assert refused.status == 400 and "access-control-allow-origin" not in refused.headers
    good = {**JSON_TYPE, "Origin": "http://good.example", "Authorization": "Bearer k"}
    reply = open_server.request("POST", "/v1/completions", body, good)
    assert reply.status == 200 and reply.headers["access-control-allow-origin"] == "http://good.example"


# -- load --------------------------------------------------------------------------------------------------------------


def test_too_many_waiting_requests_get_503_and_a_time_to_come_back(slow_engine: Engine):
    server = slow_engine.serve(max_num_queued_reqs=1)
    busy = [open_request(server, **LONG, stream=True) for _ in range(3)]  # two run, one waits
    wait_until(lambda: unfinished(slow_engine) == 3)
    for stream in (False, True):
        reply = server.complete(prompt="abc", max_tokens=1, stream=stream)
        assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1
        assert reply.error["type"] == "ServiceUnavailableError"
    assert b'admission_rejections_total{model_name="' in server.get("/metrics").body
    for connection in busy:
        connection.close()
    wait_until(lambda: unfinished(slow_engine) == 0)
    assert server.complete(prompt="abc", max_tokens=1).status == 200


def test_too_many_prompt_tokens_in_work_get_503(slow_engine: Engine):
    server = slow_engine.serve(max_num_queued_tokens=100)
    busy = open_request(server, **{**LONG, "prompt": [500] * 150})
    wait_until(lambda: unfinished(slow_engine) == 1)
    assert server.complete(prompt="abc", max_tokens=1).status == 503
    busy.close()
    wait_until(lambda: unfinished(slow_engine) == 0)
    assert server.complete(prompt="abc", max_tokens=1).status == 200


# -- around the server -------------------------------------------------------------------------------------------------


def test_a_silent_stream_says_that_it_is_alive(slow_engine: Engine):
    server = slow_engine.serve(sse_keep_alive_interval=0.05)
    busy = [open_request(server, **LONG, stream=True) for _ in range(2)]
    wait_until(lambda: unfinished(slow_engine) == 2)
    waiting = open_request(server, **{**LONG, "stream": True, "max_tokens": 2})
    head = b""
    while b": keep-alive\n\n" not in head:
        head += waiting.recv(1000)
    assert b"200 OK" in head and b"data: " not in head.partition(b": keep-alive")[0]
    for connection in busy:
        connection.close()
    while b"[DONE]" not in head:
        head += waiting.recv(1000)
    waiting.close()


@pytest.mark.parametrize("in_one_piece", [True, False])
def test_a_client_that_offers_http_2_is_answered_over_http_1(tiny: Server, in_one_piece: bool):
    """Java's client does so with each first request; the body was taken for another protocol's and lost."""
    body = b'{"prompt": "\\r\\nUpgrade: a", "max_tokens": 1}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    ) % len(body)
    with socket.create_connection(("127.0.0.1", tiny.port), timeout=10) as connection:
        for _ in range(2):
            for piece in [head + body] if in_one_piece else [head, body]:
                time.sleep(0.05)
                connection.sendall(piece)
            reply = b""
            while b'"usage"' not in reply:
                reply += connection.recv(4096)
                assert reply.startswith(b"HTTP/1.1 200"), reply


def test_a_client_of_http_1_0_gets_its_stream_without_chunks(tiny: Server):
    """Such as nginx with its defaults; its chunks' sizes stood between the events."""
    body = b'{"prompt": "a", "max_tokens": 3, "stream": true, "ignore_eos": true}'
    for path, sent in (("/v1/completions", body), ("/tokenize", b'{"prompt": "a"}')):
        with socket.create_connection(("127.0.0.1", tiny.port), timeout=10) as connection:
            head = b"POST %s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            connection.sendall(head % (path.encode(), len(sent)) + sent)
            reply = b"".join(iter(lambda: connection.recv(65536), b""))  # to the end of the connection
        fields, _, text = reply.partition(b"\r\n\r\n")
        assert b"connection: close" in fields and b"chunked" not in fields
        if path == "/tokenize":
            assert json.loads(text)["count"] == 1 and b"content-length" in fields
        else:
            assert text.startswith(b"data: {") and text.endswith(b"data: [DONE]\n\n")
            assert all(line.startswith(b"data: ") for line in text.split(b"\n\n")[:-1])


def test_a_server_behind_a_path_of_a_proxy(tiny_engine: Engine):
    """One that takes the path off before it passes a request on, and one that does not."""
    server = tiny_engine.serve(root_path="/ai", api_key=["k"])
    for prefix in ("", "/ai"):
        assert server.get(f"{prefix}/health").status == 200
        assert server.request("GET", f"{prefix}/v1/models", headers={"Authorization": "Bearer k"}).status == 200
        assert server.get(f"{prefix}/v1/models").status == 401
    assert server.request("GET", "/other/v1/models", headers={"Authorization": "Bearer k"}).status == 404


class Stamp:
    """An ASGI middleware as a user would bring it."""

    def __init__(self, app) -> None:
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        async def stamped(message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"1")]
            await send(message)

        await self.app(scope, receive, stamped)


def test_a_middleware_of_the_users_own(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch):
    import sys
    import types

    module = types.ModuleType("users_middleware")
    module.Stamp = Stamp
    monkeypatch.setitem(sys.modules, "users_middleware", module)
    server = tiny_engine.serve(middleware=["users_middleware.Stamp"])
    assert server.get("/health").headers["x-stamp"] == "1"


def test_https_with_a_certificate(tiny_engine: Engine, tmp_path):
    import shutil
    import ssl
    import subprocess

    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout {key} -out {certificate}"
    subprocess.run([*make.split(), "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    server = tiny_engine.serve(ssl_keyfile=key, ssl_certfile=certificate)
    trusting = ssl.create_default_context(cafile=certificate)
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as plain,
        trusting.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert secure.recv(1000).startswith(b"HTTP/1.1 200")


def test_idle_connections_outlive_those_of_clients_and_proxies(slow_engine):
    """Who closes first must be the client: nginx and load balancers reuse a connection for 60 s."""
    assert uvicorn_config(slow_engine.serve().state).timeout_keep_alive > 60
