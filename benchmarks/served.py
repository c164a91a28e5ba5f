"""A server to measure: `octavo serve` as a process, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.entrypoints.bench.client import Client

Body = dict[str, Any]


class TaskCount:
    """A middleware that answers GET /tasks with the number of tasks on the server's event loop."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/tasks":
            return await self._app(scope, receive, send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(len(asyncio.all_tasks())).encode()})


@dataclass(frozen=True)
class Held:
    """What the server and its engine process hold at one moment."""

    server_mb: float
    engine_mb: float
    num_descriptors: int
    num_tasks: int
    num_blocks_in_use: int
    num_requests: int

    def __str__(self) -> str:
        return (
            f"server {self.server_mb:.1f} MB, engine {self.engine_mb:.1f} MB, {self.num_descriptors} descriptors, "
            f"{self.num_tasks} tasks, {self.num_blocks_in_use} blocks in use, {self.num_requests} requests"
        )


@dataclass(frozen=True)
class Served:
    """A running server. ready_s: from its start to the first good /health."""

    url: str
    process_id: int
    ready_s: float

    @property
    def process_ids(self) -> list[int]:
        """The server's process and its engine's."""
        threads = Path(f"/proc/{self.process_id}/task").glob("*/children")
        return [self.process_id, *sorted(int(child) for path in threads for child in path.read_text().split())]

    def held(self) -> Held:
        """Look at the server; nothing should run."""
        state = json.loads(self.get("/octavo/state"))
        blocks = base64.b64decode(state["blocks"])
        server, engine = self.process_ids[:2]
        return Held(
            server_mb=resident_mb(server),
            engine_mb=resident_mb(engine),
            num_descriptors=sum(len(os.listdir(f"/proc/{process}/fd")) for process in (server, engine)),
            num_tasks=int(self.get("/tasks")),
            num_blocks_in_use=sum(block in (2, 3) for block in blocks),
            num_requests=state["num_running"] + state["num_waiting"],
        )

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path) as response:
            return bytes(response.read())

    def processor_s(self) -> float:
        """Return the processor time of both processes so far."""
        return sum(
            sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]))
            for process in self.process_ids
        ) / os.sysconf("SC_CLK_TCK")


def resident_mb(process_id: int) -> float:
    text = Path(f"/proc/{process_id}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


@contextlib.contextmanager
def serving(model: str, *flags: str) -> Iterator[Served]:
    """Run a server until the end of the block."""
    model = os.path.abspath(model) if os.path.exists(model) else model
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(port), "--disable-access-log"]
    command += ["--middleware", "served.TaskCount", *flags]
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment = {**os.environ, "OCTAVO_LOG_LEVEL": "WARNING", "PYTHONPATH": os.pathsep.join(paths)}
    started = time.monotonic()
    # in this folder: finds this module for the middleware, and the octavo that this process has
    server = subprocess.Popen(command, env=environment, cwd=Path(__file__).parent)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health"):
                break
            if server.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.005)
        yield Served(url, server.pid, time.monotonic() - started)
    finally:
        server.terminate()
        server.wait()


async def events(client: Client, path: str, body: Body) -> AsyncIterator[bytes]:
    """Yield the events of a stream; leaving early leaves the connection, and so aborts the request."""
    async with client.request("POST", path, json.dumps(body).encode()) as response:
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {(await response.read()).decode()[:300]}")
        rest = b""
        async for piece in response.pieces():
            *whole, rest = (rest + piece).split(b"\n\n")
            for one in whole:
                yield one


async def post(client: Client, path: str, body: Body) -> Any:
    """Return the JSON that answers a request."""
    async with client.request("POST", path, json.dumps(body).encode()) as response:
        answer = await response.read()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {answer.decode()[:300]}")
        return json.loads(answer)
