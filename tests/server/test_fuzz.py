"""Requests made up from the server's own description, and mangled ones: never a 5xx, never a dead engine."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from octavo.entrypoints.openai.routes import ENDPOINTS, RERANK_PATHS, SCORE_PATHS
from tests.server.conftest import JSON_TYPE, Engine, Server
from tests.tiny_encoders import write_bert, write_cross_encoder

JSON_ENDPOINTS = {endpoint.path: endpoint.request_type for endpoint in ENDPOINTS if endpoint.request_type is not None}
NOT_FUZZED = ("/sleep", "/wake_up", "/reset_prefix_cache")  # they change what the other tests see
STATUSES = {200, 400, 401, 404, 408, 413, 415, 431}


@pytest.fixture(scope="module")
def fuzzed(tiny_engine: Engine) -> Server:
    return tiny_engine.serve(max_sequences_per_request=8, max_prompts_per_request=4, disable_access_log=True)


def operations(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        if path not in NOT_FUZZED
    ]


def test_no_request_that_the_description_allows_breaks_the_server(fuzzed: Server):
    neighbour = dict(prompt="import os", max_tokens=8, temperature=0)
    expected = fuzzed.complete(**neighbour).json["choices"]
    document = fuzzed.get("/openapi.json").json
    schema = schemathesis.openapi.from_dict(document)
    for method, path in operations(document):

        @given(case=schema[path][method].as_strategy())
        @settings(
            max_examples=40 if method == "POST" else 3,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def send(case: Any) -> None:
            response = case.call(base_url=fuzzed.url, timeout=60)
            assert response.status_code in STATUSES, response.text
            if response.status_code != 200:
                assert response.json()["error"]["message"]

        send()
    assert fuzzed.complete(**neighbour).json["choices"] == expected


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, "", "x", "\u0000", "é" * 50),
    *([], [0], [None], [[]], [[0]], ["x"], {}, {"x": 1}, {"0": 1}, {"type": "x"}, [{"role": "user", "content": "x"}]),
)


GOOD = {"prompt": "abc", "tokens": [70], "max_tokens": 2}
CONVERSATION = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
GOOD_FIELDS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CONVERSATION,
    "/v1/messages": {**CONVERSATION, "model": "tiny"},
    "/v1/messages/count_tokens": {**CONVERSATION, "model": "tiny"},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
}


SCORED = {path: {"text_1": "a", "text_2": ["b", "c"]} for path in SCORE_PATHS}
RANKED = {path: {"query": "a", "documents": ["b", "c"]} for path in RERANK_PATHS}
EMBEDDED = {"/v1/embeddings": {"input": "a b"}, "/pooling": {"input": "a"}, "/v2/embed": {"texts": ["a"]}}
CLASSIFIED = {"/classify": {"input": "a"}}
SWITCHED_OFF = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
POOLED: dict[str, dict[str, Any]] = {**EMBEDDED, **CLASSIFIED, **SCORED, **RANKED}


@pytest.fixture(scope="module")
def fuzzed_poolers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """A server of a pooling model for each path that needs one."""
    engines = [Engine(model=str(write(tmp_path_factory.mktemp("m")))) for write in (write_bert, write_cross_encoder)]
    embedder, scorer = (engine.serve(disable_access_log=True) for engine in engines)
    yield {path: embedder if path in EMBEDDED else scorer for path in POOLED}
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("path", JSON_ENDPOINTS)
def test_no_mangled_request_breaks_the_server(fuzzed: Server, fuzzed_poolers: dict[str, Server], path: str):
    names = list(JSON_ENDPOINTS[path].__struct_fields__)
    good = {**GOOD_FIELDS, **POOLED}.get(path, GOOD)
    fuzzed = fuzzed_poolers.get(path, fuzzed)
    generator = random.Random(path)
    num_accepted = 0
    for _ in range(250):
        fields = {name: value for name, value in good.items() if name in names}
        for _ in range(generator.choice((0, 1, 1, 2, 4))):
            fields[generator.choice(names)] = generator.choice(VALUES)
        body = bytearray(json.dumps(fields).encode())
        if generator.random() < 0.1:
            body[generator.randrange(len(body))] = generator.randrange(256)
        reply = fuzzed.request("POST", path, bytes(body), JSON_TYPE)
        assert reply.status in STATUSES, (bytes(body), reply.body)
        num_accepted += reply.status == 200
        assert reply.status == 200 or reply.json["error"]["message"]
    assert num_accepted > 10 or path in SWITCHED_OFF, "the fuzzer should also reach the engine"
    assert fuzzed.get("/health").status == 200


def test_no_order_to_the_engine_breaks_it(tiny_folder: Path):
    """Sleep, wake up, pause and reset in any order and with odd wishes, while requests run."""
    engine = Engine(model=str(tiny_folder), served_model_name="tiny", num_gpu_blocks_override=64)
    server = engine.serve(disable_access_log=True)
    expected = server.complete(prompt="import os", max_tokens=8, temperature=0).json["choices"]
    generator = random.Random(3)
    values = ("", "0", "1", "2", "3", "-1", "true", "maybe", "keep", "abort", "é", "9" * 400)
    names = ("level", "mode", "tags", "reset_running_requests", "reset_external")
    with ThreadPoolExecutor(4) as others:
        running = [others.submit(server.complete, prompt="def", max_tokens=200, ignore_eos=True) for _ in range(8)]
        for _ in range(150):
            query = urlencode(
                {generator.choice(names): generator.choice(values) for _ in range(generator.randrange(3))}
            )
            reply = server.request("POST", f"{generator.choice(NOT_FUZZED)}?{query}")
            assert reply.status in STATUSES, (query, reply.body)
            if generator.random() < 0.5:
                assert server.post("/wake_up").status == 200
        assert server.post("/wake_up").status == 200
        assert {one.result().status for one in running} <= {200}
    assert server.complete(prompt="import os", max_tokens=8, temperature=0).json["choices"] == expected
    engine.close()
