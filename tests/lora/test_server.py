"""Adapters over HTTP: names, listing, loading at run time; and an engine that is killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, EngineArgs, SamplingParams
from octavo.entrypoints.openai.adapters import parse_lora_modules
from octavo.entrypoints.openai.launch import check_adapters, launch
from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.errors import CheckpointError, ConfigError
from octavo.lora.request import LoRARequest
from tests.engine.processes import wait_until
from tests.lora.adapters import rename_tensors, write_adapter
from tests.server.conftest import Engine
from tests.tiny_models import llama_config, write_tiny_model

OPTIONS: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "num_gpu_blocks_override": 256, "max_num_seqs": 8}
PROMPT = list(range(30, 60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    model = write_tiny_model(folder / "model", llama_config())
    for seed, name in enumerate(("one", "two")):
        write_adapter(folder / name, model, seed=seed)
    return folder


@pytest.fixture(scope="module")
def engine(folder):
    engine = Engine(model=str(folder / "model"), served_model_name="base", **OPTIONS)
    yield engine
    engine.close()


@pytest.fixture
def server(engine, folder, monkeypatch):
    monkeypatch.setenv("OCTAVO_ALLOW_RUNTIME_LORA_UPDATING", "1")
    server = engine.serve()
    engine.call(server.state.adapters.load_at_start({"one": str(folder / "one")}))
    return server


def complete(server, model: str) -> list[int]:
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    response = server.post("/v1/completions", model=model, **body)
    assert response.status == 200, response.body.decode()
    assert response.json["model"] == model
    return response.json["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def expected(folder) -> dict[str, list[int]]:
    llm = LLM(str(folder / "model"), **OPTIONS)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    requests = {"base": None, **{n: LoRARequest(n, i, str(folder / n)) for i, n in enumerate(("one", "two"), 1)}}
    return {
        name: list(llm.generate([PROMPT], params, use_tqdm=False, lora_request=request)[0].outputs[0].token_ids)
        for name, request in requests.items()
    }


def test_a_model_name_chooses_the_adapter(server, expected, folder):
    assert len(set(map(tuple, expected.values()))) == 3
    assert [complete(server, name) for name in ("base", "one")] == [expected["base"], expected["one"]]
    assert server.post("/v1/completions", model="two", prompt="a").status == 404
    cards = server.get("/v1/models").json["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("base", None), ("one", "base")]
    assert cards[1]["root"] == str(folder / "one")
    messages = [{"role": "user", "content": "hello"}]
    chat = {"messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": True}
    answers = [server.post("/v1/chat/completions", model=name, **chat).json for name in ("base", "one")]
    assert answers[0]["choices"][0]["logprobs"] != answers[1]["choices"][0]["logprobs"]
    tail = {"model": "one", "max_tokens": 4}
    assert server.post("/v1/messages", messages=messages, **tail).status == 200
    assert server.post("/v1/responses", input="hello", model="one", max_output_tokens=4).status == 200


def test_adapters_come_and_go_at_run_time(server, expected, folder, tmp_path):
    path = str(folder / "two")
    assert server.post("/v1/load_lora_adapter", lora_name="two", lora_path=path).status == 200
    assert complete(server, "two") == expected["two"]
    assert server.post("/v1/load_lora_adapter", lora_name="two", lora_path=path).status == 400
    other = {"lora_name": "two", "lora_path": str(folder / "one"), "load_inplace": True}
    assert server.post("/v1/load_lora_adapter", **other).status == 200
    assert complete(server, "two") == expected["one"]
    bad = {**other, "lora_path": str(rename_tensors(write_adapter(tmp_path / "bad", folder / "model"), "self_", "x_"))}
    assert server.post("/v1/load_lora_adapter", **bad).status == 400
    assert complete(server, "two") == expected["one"]
    assert server.post("/v1/unload_lora_adapter", lora_name="two").status == 200
    assert server.post("/v1/completions", model="two", prompt="a").status == 404
    assert server.post("/v1/unload_lora_adapter", lora_name="two").status == 404


def info(server) -> str:
    """Return the labels of lora_requests_info from max_lora on."""
    (line,) = (line for line in server.get("/metrics").body.decode().splitlines() if "lora_requests_info{" in line)
    return line[line.index("max_lora") : line.index("}")]


def test_an_adapter_that_is_unloaded_finishes_what_runs_and_the_metrics_name_it(server, folder):
    none = 'max_lora="2",running_lora_adapters="",waiting_lora_adapters=""'
    wait_until(lambda: info(server) == none)
    assert server.post("/v1/load_lora_adapter", lora_name="two", lora_path=str(folder / "two")).status == 200
    body = {"model": "two", "prompt": PROMPT, "max_tokens": 400, "n": 8, "seed": 1, "ignore_eos": True}
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(lambda: server.post("/v1/completions", **body))
        wait_until(lambda: 'running_lora_adapters="two"' in info(server))
        assert server.post("/v1/unload_lora_adapter", lora_name="two").status == 200
        assert server.post("/v1/completions", **body).status == 404
        assert answer.result().json["usage"]["completion_tokens"] == 8 * 400
    wait_until(lambda: info(server) == none)


def test_adapters_that_do_not_fit_are_refused_and_leave_no_name(server, expected, folder, tmp_path, monkeypatch):
    rename_tensors(write_adapter(tmp_path / "bad", folder / "model"), "self_attn", "attention")
    response = server.post("/v1/load_lora_adapter", lora_name="bad", lora_path=str(tmp_path / "bad"))
    assert response.status == 400 and "layers.0.attention" in response.body.decode()
    response = server.post("/v1/load_lora_adapter", lora_name="bad", lora_path=str(tmp_path / "none"))
    assert response.status == 404 and "adapter_config.json" in response.body.decode()
    assert server.post("/v1/load_lora_adapter", lora_name="base", lora_path="x").status == 400
    assert server.post("/v1/completions", model="bad", prompt="a").status == 404
    monkeypatch.delenv("OCTAVO_ALLOW_RUNTIME_LORA_UPDATING")
    assert server.post("/v1/load_lora_adapter", lora_name="x", lora_path="x").status == 404
    assert complete(server, "one") == expected["one"]


def test_lora_modules_are_pairs_or_json():
    assert parse_lora_modules(["a=/x/y", '{"name": "b", "path": "/z", "base_model_name": "m"}']) == {
        "a": "/x/y",
        "b": "/z",
    }
    for values in (["a"], ["=x"], ["{"], ['{"name": "a"}'], ["a=1", "a=2"]):
        with pytest.raises(ConfigError, match="lora_modules"):
            parse_lora_modules(values)


def test_adapters_are_checked_before_a_model_is_loaded(folder, tmp_path):
    good, bad = folder / "one", write_adapter(tmp_path / "bad", folder / "model", r=17)
    args = EngineArgs(model="no-such-model", enable_lora=True)
    check_adapters(args, ServerArgs(lora_modules=[f"a={good}"]))
    for path, text in ((bad, "rank 17"), (tmp_path / "none", "no LoRA adapter at")):
        with pytest.raises(ConfigError, match=f"--lora-modules a=.*{text}"):
            check_adapters(args, ServerArgs(lora_modules=[f"a={path}"]))


@pytest.mark.parametrize("processes", [None, 2])
def test_adapters_of_another_model_are_refused_whatever_its_weights_are(processes, folder, tmp_path):
    model = shutil.copytree(folder / "model", tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"none")
    wide = write_adapter(tmp_path / "wide", write_tiny_model(tmp_path / "other", llama_config(hidden_size=32)))
    wrong = rename_tensors(write_adapter(tmp_path / "wrong", folder / "model"), "mlp", "ffn")
    for path, text in (
        (wide, "--lora-modules a=.* inputs and 32 outputs, the model's .* and 64"),
        (wrong, "--lora-modules a=.* none of this model's layers"),
        (folder / "one", "model.safetensors"),
    ):
        server_args = ServerArgs(port=0, lora_modules=[f"a={path}"], api_server_count=processes)
        with pytest.raises((ConfigError, CheckpointError), match=text):
            launch(EngineArgs(model=str(model), enable_lora=True), server_args, ["base"])


def test_a_start_with_an_adapter_that_is_missing_fails(engine, folder):
    state = engine.serve().state
    with pytest.raises(ConfigError, match="--lora-modules nothing="):
        engine.call(state.adapters.load_at_start({"nothing": str(folder / "nothing")}))


def test_requests_with_adapters_survive_their_engine(folder):
    async def run(kill: bool) -> list[Any]:
        engine = AsyncLLM.from_engine_args(EngineArgs(model=str(folder / "model"), **OPTIONS))
        params = SamplingParams(max_tokens=150, temperature=0, ignore_eos=True)
        requests = [None, *(LoRARequest(n, i, str(folder / n)) for i, n in enumerate(("one", "two"), 1))]

        async def one(number: int) -> list[int]:
            tokens: list[int] = []
            async for output in engine.generate(PROMPT, params, f"r{number}", lora_request=requests[number]):
                tokens = list(output.outputs[0].token_ids)
                if kill and number == 1 and not killed and len(tokens) > 20:
                    killed.append(engine_process(engine))
                    os.kill(killed[0], signal.SIGKILL)
            return tokens

        killed: list[int] = []
        try:
            return list(await asyncio.gather(*map(one, range(3))))
        finally:
            engine.shutdown()

    undisturbed = asyncio.run(run(kill=False))
    assert asyncio.run(run(kill=True)) == undisturbed
    assert len(set(map(tuple, undisturbed))) == 3


def engine_process(engine: AsyncLLM) -> int:
    child = engine.engine_core._replicas.supervisors[0].child
    assert child is not None
    return child.process_id
