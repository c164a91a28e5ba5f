"""`octavo serve` as a process: options, start, signals, what is left afterwards."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.processes import wait_until
from tests.server.conftest import JSON_TYPE

COMMAND = "import sys; from octavo.entrypoints.cli.main import main; sys.exit(main(sys.argv[1:]))"
ENGINE_FLAGS = ("--num-gpu-blocks-override", "64", "--no-use-tqdm-on-load")


def octavo(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def outcome(*arguments: str) -> tuple[int, str]:
    process = octavo(*arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


class Running:
    """A server process that is ready."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.process = octavo("serve", *arguments, *ENGINE_FLAGS, environment=environment)
        self.log: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if "ready at" in line:
                self.where = line.split("ready at ")[1].strip()
                break
        else:
            raise AssertionError("".join(self.log))
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self._reader.start()

    def connect(self) -> http.client.HTTPConnection:
        if self.where.startswith("unix:"):
            connection = http.client.HTTPConnection("localhost", timeout=60)
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.connect(self.where.removeprefix("unix:"))
            return connection
        return http.client.HTTPConnection(self.where.removeprefix("http://"), timeout=60)

    def complete(self, **fields: Any) -> tuple[int, Any]:
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps(fields), JSON_TYPE)
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task")
        return [int(pid) for task in path.iterdir() for pid in (task / "children").read_text().split()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        self._reader.join(5)
        return code


@pytest.fixture
def start(tiny_folder: Path) -> Iterator[Any]:
    running: list[Running] = []

    def begin(*arguments: str, environment: dict[str, str] | None = None) -> Running:
        running.append(Running(*(arguments or (str(tiny_folder),)), environment=environment))
        return running[-1]

    yield begin
    for server in running:
        server.process.kill()
        server.process.wait()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_server_drains_on_sigterm_and_leaves_nothing_behind(start, tiny_folder: Path, tmp_path: Path):
    config = tmp_path / "server.yaml"
    path = tmp_path / "s.sock"
    config.write_text(
        f"model: {tiny_folder}\nuds: {path}\nserved-model-name: [one, two]\nmax_stop_strings: 7\n"
        "default_chat_template_kwargs: {a: 1}\nport: 1\ndisable_log_stats: true\n"
    )
    server = start("--config", str(config), "--max-stop-strings", "2")
    assert server.where == f"unix:{path}" and (path.stat().st_mode & 0o777) == 0o660
    assert server.complete(model="two", prompt="abc", stop=["x", "y"], max_tokens=2)[0] == 200
    status, answer = server.complete(prompt="abc", stop=["x", "y", "z"])  # the command line wins over the file
    assert status == 400 and "at most 2" in answer["error"]["message"]
    children = server.children()
    assert children
    answers: list[tuple[int, Any]] = []
    asking = threading.Thread(
        target=lambda: answers.append(server.complete(prompt="abc", max_tokens=480, ignore_eos=True))
    )
    asking.start()
    time.sleep(0.05)
    assert server.stop() == 0
    asking.join(10)
    assert answers[0][1]["usage"]["completion_tokens"] == 480
    assert not path.exists() and not any(is_alive(pid) for pid in children)
    assert "Traceback" not in "".join(server.log)


@pytest.mark.parametrize(("timeout", "signals"), [("0.3", 1), ("60", 2)])
def test_what_takes_too_long_or_longer_than_a_second_signal_is_aborted_and_told_so(start, timeout: str, signals: int):
    model = "smollm2-135m-instruct"
    server = start(model, "--port", "0", "--shutdown-timeout", timeout, "--max-model-len", "1024")
    connection = server.connect()
    fields = {"prompt": "abc", "max_tokens": 900, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(fields), JSON_TYPE)
    response = connection.getresponse()
    response.readline()
    children = server.children()
    if signals == 2:
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert server.stop(signal.SIGINT) == 0
    lines = [line for line in response.read().decode().splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2][6:])["choices"][0]["finish_reason"] == "abort"
    assert not any(is_alive(pid) for pid in children)
    assert "Traceback" not in "".join(server.log)


@pytest.mark.parametrize("flags", [(), ("--api-server-count", "2")])
def test_a_server_that_is_told_to_end_while_it_starts_leaves_no_socket(flags, tiny_folder: Path, tmp_path: Path):
    path = tmp_path / "s"
    process = octavo("serve", str(tiny_folder), "--uds", str(path), *ENGINE_FLAGS, *flags)
    wait_until(path.exists)
    process.terminate()
    _, log = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert not path.exists() and "Traceback" not in log


def test_keys_come_from_the_environment_and_are_not_logged(start, tiny_folder: Path):
    server = start(
        str(tiny_folder), "--port", "0", "--enable-log-requests", "--enable-log-outputs", "--max-log-len", "5",
        environment={"OCTAVO_API_KEY": "very-secret"},
    )  # fmt: skip
    connection = server.connect()
    connection.request("GET", "/v1/models")
    assert connection.getresponse().status == 401
    connection = server.connect()
    body = json.dumps({"prompt": "import os, sys", "max_tokens": 3, "request_id": "me"})
    connection.request("POST", "/v1/completions", body, {**JSON_TYPE, "Authorization": "Bearer very-secret"})
    assert connection.getresponse().status == 200
    server.stop()
    log = "".join(server.log)
    assert "very-secret" not in log
    assert "cmpl-me" in log and "'impor…'" in log and "import os" not in log and "3 tokens in" in log


# -- wrong options -----------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_told_before_a_model_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, output = outcome("serve", "no-such-model", "--port", str(taken.getsockname()[1]))
    assert code == 2 and "cannot listen" in output and "Traceback" not in output


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--fully-sharded-loras",), "one worker"),
        (("--speculative-config", '{"method": "mlp_speculator", "num_speculative_tokens": 3}'), "not built"),
        (("--tool-call-parser", "x"), "hermes"),
        (("--tool-parser-plugin", "no-such-file.py"), "no such file"),
        (("--reasoning-parser", "x"), "qwen3"),
        (("--reasoning-parser", "qwen33"), "did you mean qwen3"),
        (("--chat-template", "{{ messages"), "--chat-template: the chat template is not valid Jinja"),
        (("--root-path", "ai"), "root_path must begin with a slash"),
        (("--served-model-name", ""), "served_model_name must not be empty"),
        (("--lora-modules", "a=/no/such/adapter"), "--enable-lora"),
        (("--enable-lora", "--lora-modules", "a=/no/such/adapter"), "no LoRA adapter at /no/such/adapter"),
        (("--api-key", ""), "api_key (OCTAVO_API_KEY) is empty"),
        (("--api-key", " padded"), "no request could carry it"),
        (("--api-key", "first", "my-model"), "no model is named, unless --api-key took its name"),
    ],
)
def test_flags_of_unbuilt_capabilities_are_refused_with_a_reason(flags: tuple[str, ...], word: str):
    code, output = outcome("serve", *flags)
    assert code == 2 and word in output and "Traceback" not in output


def test_a_variable_for_the_key_that_is_empty_opens_no_server(monkeypatch):
    monkeypatch.setenv("OCTAVO_API_KEY", "")
    code, output = outcome("serve", "no-such-model")
    assert code == 2 and "unset the variable" in output


def test_neutral_values_of_vllms_flags_are_accepted(start, tiny_folder: Path):
    server = start(
        str(tiny_folder), "--port", "0", "--no-enable-lora", "--api-server-count", "1", "--disable-uvicorn-access-log",
        "--h11-max-header-count", "50", "--enable-server-load-tracking", "--enable-sleep-mode", "--no-async-scheduling",
        "--uvicorn-log-level", "error", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        "--reasoning-parser", "qwen3",
    )  # fmt: skip
    assert server.complete(prompt="abc", max_tokens=1)[0] == 200
    assert not any("octavo.access" in line for line in server.log)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("- a\n", "name: value"),
        ("a: [", "c.yaml: not YAML: expected the node content, but found '<stream end>' in line 1;"),
        ("a: \0", "cannot read it: unacceptable character"),
        ("port: 1\nmax-num-seqs: 4\nmax_num_seqs: 8\n", "c.yaml: it has max-num-seqs twice"),
        ("enable-prefix-caching: maybe\n", "a switch (in a file: true or false), got 'maybe'"),
        ("port: x\n", "c.yaml: argument --port"),
        ("config: x\n", "another config"),
        ("nonsense: 1\n", "nonsense"),
        ("max_modellen: 64\n", "did you mean --max-model-len"),
    ],
)
def test_a_wrong_config_file_is_refused(tmp_path: Path, content: str, word: str):
    path = tmp_path / "c.yaml"
    path.write_text(content)
    code, output = outcome("serve", "--config", str(path))
    assert code == 2 and word in output and len(output.splitlines()) == 1


def test_help_finds_flags_by_a_part_of_their_name(tmp_path: Path):
    code, found = outcome("serve", "--help=max_num_seqs")
    assert code == 0 and re.findall(r"^(--[a-z-]+)", found, re.M) == ["--max-num-seqs"]
    code, found = outcome("serve", "--help=no-such-flag")
    assert code == 2 and "no flag contains it" in found and "engine" in found


def test_help_folds_the_engines_flags(tmp_path: Path):
    short, engine, everything = (outcome("serve", flag)[1] for flag in ("--help", "--help=engine", "--help=all"))
    assert "--max-num-queued-reqs" in short and "--max-model-len" not in short and "--help=engine" in short
    assert "--max-model-len" in engine and "--max-num-queued-reqs" not in engine
    assert "--max-model-len" in everything and "--max-num-queued-reqs" in everything
    flags = re.findall(r"^  (--[a-z0-9-]+)", everything, re.M)
    assert len(flags) == len(set(flags))


def test_the_engine_process_starts_before_this_one_imports_what_takes_long():
    heavy = ("numpy", "tokenizers", "uvicorn", "octavo.engine.resolve", "octavo.engine.async_llm")
    code = (
        "import sys\n"
        "from octavo.config.engine_args import EngineArgs\n"
        "from octavo.entrypoints.cli import main, serve\n"
        "from octavo.entrypoints.openai import launch\n"
        "heavy = HEAVY\n"
        "def start(args): sys.exit(f'{args.model} {[name for name in heavy if name in sys.modules]}')\n"
        "launch.StartingProcess = start\n"
        "launch._start_engine(EngineArgs('some-model'), None)\n"
    ).replace("HEAVY", repr(heavy))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.strip() == "some-model []"
