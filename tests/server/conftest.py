"""Servers for tests: real engines in a process of their own, and any number of HTTP servers in front of each."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.config import EngineArgs
from octavo.engine.async_llm import AsyncLLM
from octavo.entrypoints.openai.listening import bind
from octavo.entrypoints.openai.run import WebServer, uvicorn_config
from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.entrypoints.openai.state import ServerState
from octavo.loader.catalog import pull
from tests.tiny_models import llama_config, write_tiny_model

JSON_TYPE = {"Content-Type": "application/json"}


@dataclass
class Reply:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, which every refusal must have."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str) and error["message"]
        assert "Traceback" not in error["message"] and 'File "' not in error["message"]
        return error

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a stream, which must end with [DONE]."""
        assert self.headers["content-type"].startswith("text/event-stream"), self.body
        lines = [line for line in self.body.decode().split("\n\n") if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@dataclass
class Server:
    """One HTTP server under test."""

    port: int
    state: ServerState
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {**self.headers, **(headers or {})})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def post(self, path: str, **fields: Any) -> Reply:
        return self.request("POST", path, json.dumps(fields).encode(), JSON_TYPE)

    def complete(self, **fields: Any) -> Reply:
        return self.post("/v1/completions", **fields)

    def chat(self, content: str = "Hi", **fields: Any) -> Reply:
        fields.setdefault("messages", [{"role": "user", "content": content}])
        return self.post("/v1/chat/completions", **fields)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    @property
    def model(self) -> str:
        return self.state.model_names[0]


class Engine:
    """An engine, its event loop on a thread, and the servers in front of it."""

    def __init__(self, **options: Any) -> None:
        self.llm = AsyncLLM.from_engine_args(EngineArgs.from_kwargs(use_tqdm_on_load=False, **options))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._servers: list[tuple[WebServer, Any]] = []

    def serve(self, names: tuple[str, ...] = (), chat_template: str | None = None, **options: Any) -> Server:
        """Start a server with these options on a free port."""
        args = ServerArgs.from_kwargs(port=0, **options)
        listener = bind(args)
        state = ServerState(self.llm, args, names, chat_template)

        async def start() -> WebServer:
            web = WebServer(uvicorn_config(state), state)
            running = asyncio.ensure_future(web.serve([listener]))
            while not web.started:
                assert not running.done(), running.exception()
                await asyncio.sleep(0.005)
            self._servers.append((web, running))
            return web

        port = listener.getsockname()[1]
        self.call(start())
        return Server(port, state)

    def call(self, work: Any) -> Any:
        """Run a coroutine on the engine's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        async def stop() -> None:
            for web, running in self._servers:
                web.handle_exit(2, None)
                await running

        self.call(stop())
        self.llm.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", llama_config())


@pytest.fixture(scope="session")
def tiny_engine(tiny_folder: Path) -> Iterator[Engine]:
    """A random model: for everything that is not about what the model says. 512 positions, 320 tokens."""
    engine = Engine(
        model=str(tiny_folder), served_model_name="tiny", max_num_seqs=8, num_gpu_blocks_override=512, block_size=16
    )
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def tiny(tiny_engine: Engine) -> Server:
    return tiny_engine.serve()


@pytest.fixture(scope="session")
def real_engine() -> Iterator[Engine]:
    """SmolLM2, for what needs text that means something."""
    path = pull("smollm2-135m-instruct", lambda progress: None)
    engine = Engine(model=str(path), served_model_name="smollm2", max_model_len=1024, num_gpu_blocks_override=256)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def real(real_engine: Engine) -> Server:
    return real_engine.serve()


@pytest.fixture(scope="session")
def scripted_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A model that says what requests tell it to; see scripted.py. 4096 positions."""
    folder = tmp_path_factory.mktemp("models") / "scripted"
    write_tiny_model(folder, llama_config(max_position_embeddings=4096))
    engine = Engine(
        model=str(folder), served_model_name="scripted", max_num_seqs=8, num_gpu_blocks_override=1024,
        logits_processors=["tests.server.scripted:Scripted"],
    )  # fmt: skip
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def scripted(scripted_engine: Engine) -> Server:
    """Its template knows tools (Hermes) and reasoning (Qwen3)."""
    from tests.server.scripted import TEMPLATE

    return scripted_engine.serve(chat_template=TEMPLATE)


def wait_until(is_true: Any, timeout_s: float = 20) -> None:
    """Wait for a condition; fails when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
