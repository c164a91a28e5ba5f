"""A server with two engine replicas, and servers that have one replica of several each."""

from __future__ import annotations

import base64
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import JSON_TYPE, Engine, Reply, Server, wait_until
from tests.server.test_process import Running

PROMPTS = [[topic, 5, 6, 7] for topic in range(1, 9)]


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Iterator[Engine]:
    options = {"max_num_seqs": 8, "num_gpu_blocks_override": 512, "block_size": 16}
    engine = Engine(model=str(tiny_folder), served_model_name="tiny", data_parallel_size=2, **options)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def server(engine: Engine) -> Server:
    return engine.serve()


def metrics_of(server: Server, name: str) -> dict[str, float]:
    """A metric of each engine."""
    pattern = rf'^octavo:{name}{{model_name="[^"]*",engine="(\d+)"}} (\S+)$'
    return {rank: float(value) for rank, value in re.findall(pattern, server.get("/metrics").body.decode(), re.M)}


def wishing(server: Server, rank: str, path: str = "/v1/completions", body: str = '"prompt": "abc"') -> Reply:
    data = f'{{{body}, "max_tokens": 4, "ignore_eos": true}}'.encode()
    return server.request("POST", path, data, {**JSON_TYPE, "X-data-parallel-rank": rank})


def test_the_header_chooses_the_replica(server: Server):
    for rank in ("1", "0"):
        before = metrics_of(server, "generation_tokens_total")
        assert wishing(server, rank).status == 200
        after = metrics_of(server, "generation_tokens_total")
        assert {name: after[name] - before[name] for name in after} == {rank: 4, str(1 - int(rank)): 0}


@pytest.mark.parametrize("rank", ["2", "99999999999999999999999", "-1", "x", "", "1.0", "²"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", '"prompt": "abc"'),
        ("/v1/completions", '"prompt": "abc", "stream": true'),
        ("/v1/chat/completions", '"messages": [{"role": "user", "content": "a"}], "stream": true'),
    ],
)
def test_a_header_that_names_no_replica_is_refused(server: Server, rank: str, path: str, body: str):
    reply = wishing(server, rank.encode().decode("latin-1"), path, body)
    assert reply.status == 400, reply.body
    assert reply.error["param"] == "data_parallel_rank" and "rank" in reply.error["message"]


@pytest.mark.native_ops
def test_killing_a_replica_under_load_shows_no_client_an_error(engine: Engine, server: Server, tiny: Server):
    fields: dict[str, Any] = {"max_tokens": 480, "ignore_eos": True, "seed": 3, "logprobs": 1}
    expected = [tiny.complete(prompt=prompt, **fields).json["choices"] for prompt in PROMPTS]
    answers: dict[int, Reply] = {}

    def ask(index: int) -> None:
        answers[index] = server.complete(prompt=PROMPTS[index], **fields)

    clients = [threading.Thread(target=ask, args=(index,)) for index in range(len(PROMPTS))]
    for client in clients:
        client.start()
    wait_until(lambda: all(value >= 1 for value in metrics_of(server, "num_requests_running").values()))
    os.kill(engine.llm.engine_core.process_ids[1], signal.SIGKILL)
    wait_until(lambda: metrics_of(server, "engine_up") == {"0": 1, "1": 0})
    assert server.get("/health").status == 200
    assert server.get("/octavo/state").json["is_ready"] is True
    for client in clients:
        client.join(60)
    assert [answers[index].status for index in range(len(PROMPTS))] == [200] * len(PROMPTS)
    assert [answers[index].json["choices"] for index in range(len(PROMPTS))] == expected
    wait_until(lambda: metrics_of(server, "engine_up") == {"0": 1, "1": 1})


def test_the_page_sees_both_replicas(server: Server):
    wait_until(lambda: len(base64.b64decode(server.get("/octavo/state").json["blocks"])) == 2 * 512)
    assert server.get("/octavo/state").json["max_num_seqs"] == 16


def test_metrics_of_one_name_stand_together_and_are_described_once(server: Server):
    lines = server.get("/metrics").body.decode().splitlines()
    described = [line for line in lines if line.startswith("# TYPE")]
    assert len(described) == len(set(described))
    assert 'octavo:cache_config_info{model_name="tiny",engine="1"' in "\n".join(lines)


def test_each_server_of_external_balancing_runs_the_replica_of_its_rank(tiny_folder: Path):
    running = [
        Running(str(tiny_folder), "-dp", "2", "-dpn", str(rank), "-dpa", "127.0.0.1", "-dpp", "29550", "--port", "0")
        for rank in (0, 1)
    ]
    try:
        answers = [one.complete(prompt="abc", max_tokens=5, temperature=0)[1]["choices"] for one in running]
        assert answers[0] == answers[1]
        for rank, one in enumerate(running):
            connection = one.connect()
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            assert set(re.findall(r'engine="(\d+)"', text)) == {str(rank)}
        assert [one.stop() for one in running] == [0, 0]
    finally:
        for one in running:
            one.process.kill()
            one.process.wait()
