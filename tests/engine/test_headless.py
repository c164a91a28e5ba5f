"""Replicas whose processes another host runs: real hosts, reached over TCP on this machine."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest
import zmq

from octavo import LLM, EngineArgs, SamplingParams
from octavo.engine.headless import HostedReplica
from octavo.engine.host_messages import (
    Challenge,
    ConnectHosted,
    Greeting,
    Hello,
    ToHosted,
    decode_to_host,
    encode,
    proof,
)
from octavo.engine.remote_hosts import HostLink, RemoteHosts
from octavo.errors import ConfigError
from octavo.utils.frames import FrameReader, receive_frame, send_frame
from tests.engine.processes import SMALL, children_of, comparable, is_alive, wait_until

COMMAND = "import sys; from octavo.entrypoints.cli.main import main; sys.exit(main(sys.argv[1:]))"
PARAMS = SamplingParams(max_tokens=60, ignore_eos=True, seed=5, logprobs=1, temperature=1.0)
PROMPTS = [[topic, 5, 6, 7] for topic in range(1, 9)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Host:
    """A headless process."""

    def __init__(self, model: Path, port: int, *flags: str, key: str = "k") -> None:
        options = {**SMALL, "data_parallel_size": 2, "data_parallel_address": "127.0.0.1"}
        options.update(data_parallel_start_rank=1, data_parallel_rpc_port=port)
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "serve", str(model), "--headless", *arguments, *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OCTAVO_DATA_PARALLEL_KEY": key},
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr or ()), daemon=True)
        self._reader.start()

    def end(self) -> tuple[int, str]:
        status = self.process.wait(30)
        self._reader.join(5)
        return status, "".join(self.log)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("OCTAVO_DATA_PARALLEL_KEY", "k")
    return free_port()


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    hosts: list[Host] = []
    yield hosts
    for host in hosts:
        host.process.kill()
        host.process.wait()


def front_end(model: Path, port: int, **options: Any) -> LLM:
    remote = {"data_parallel_size": 2, "data_parallel_size_local": 1, "data_parallel_address": "127.0.0.1"}
    return LLM(str(model), **SMALL, **{**remote, "data_parallel_rpc_port": port, **options})


def of_each(llm: LLM, name: str) -> dict[str, Any]:
    """A metric of each replica."""
    return {metric.labels["engine"]: metric for metric in llm.get_metrics() if metric.name == f"vllm:{name}"}


def num_finished(llm: LLM) -> dict[str, int]:
    return {rank: metric.count for rank, metric in of_each(llm, "request_generation_tokens").items()}


def results(llm: LLM) -> list[Any]:
    return [comparable(output) for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


def remote_replica(llm: LLM) -> Any:
    llm.llm_engine.check_health()
    return llm.llm_engine.engine_core._replicas.supervisors[1]


@pytest.mark.native_ops
def test_a_replica_elsewhere_gives_the_same_results_and_its_death_costs_none(tiny_llama, port, hosts):
    expected = results(LLM(str(tiny_llama), **SMALL))
    hosts.append(Host(tiny_llama, port))
    llm = front_end(tiny_llama, port)
    assert results(llm) == expected
    assert num_finished(llm) == {"0": 4, "1": 4}
    core = remote_replica(llm).child.process_id
    assert core in children_of(hosts[0].process.pid)
    threading.Timer(0.05, os.kill, (core, signal.SIGKILL)).start()
    assert [results(llm) for _ in range(3)] == [expected] * 3
    wait_until(lambda: remote_replica(llm).is_serving and remote_replica(llm).child.process_id != core)
    assert results(llm) == expected
    llm.llm_engine.shutdown()
    status, log = hosts[0].end()
    assert status == 0, log
    assert not is_alive(core)


@pytest.mark.native_ops
def test_a_host_that_dies_costs_nothing_and_may_come_back(tiny_llama, port, hosts):
    hosts.append(Host(tiny_llama, port))
    llm = front_end(tiny_llama, port)
    expected = results(llm)
    threading.Timer(0.05, hosts[0].process.kill).start()
    assert [results(llm) for _ in range(3)] == [expected] * 3
    hosts.append(Host(tiny_llama, port))
    wait_until(lambda: remote_replica(llm).is_serving)
    assert results(llm) == expected
    hosts[1].process.send_signal(signal.SIGTERM)
    status, log = hosts[1].end()
    assert status == 0, log
    llm.llm_engine.shutdown()


def test_of_two_hosts_of_one_replica_the_later_one_has_it_and_the_other_ends(tiny_llama, port, hosts):
    hosts.append(Host(tiny_llama, port))
    llm = front_end(tiny_llama, port)
    hosts.append(Host(tiny_llama, port))
    status, log = hosts[0].end()
    assert status == 1 and "another host, at 127.0.0.1, has taken the place of replica 1" in log
    assert "Traceback" not in log
    wait_until(lambda: remote_replica(llm).is_serving)
    assert len(results(llm)) == len(PROMPTS) and hosts[1].process.poll() is None
    llm.llm_engine.shutdown()


def test_all_replicas_may_run_elsewhere(tiny_llama, port, hosts):
    hosts.append(Host(tiny_llama, port, "--data-parallel-start-rank=0", "--data-parallel-size-local=2"))
    llm = front_end(tiny_llama, port, data_parallel_size_local=0)
    assert len(results(llm)) == len(PROMPTS)
    assert num_finished(llm) == {"0": 4, "1": 4}
    llm.llm_engine.shutdown()


@pytest.mark.parametrize(
    ("flags", "key", "word"),
    [
        ((), "other", "OCTAVO_DATA_PARALLEL_KEY"),
        (("--data-parallel-size=3",), "k", "data_parallel_size is 2 here, 3 there"),
        (("--data-parallel-start-rank=0", "--data-parallel-size-local=1"), "k", "none of those"),
        (("--quantization=int8",), "k", "quantization"),
        (("--data-parallel-hybrid-lb",), "k", "hybrid"),
        (("--api-server-count=2",), "k", "serves no HTTP"),
    ],
)
def test_a_host_that_does_not_fit_is_refused_and_says_why(tiny_llama, port, hosts, flags, key, word):
    listening = RemoteHosts("127.0.0.1", port, "k", [1])
    listening.accept({"data_parallel_size": "2", "quantization": repr((None, False))})
    try:
        hosts.append(Host(tiny_llama, port, *flags, key=key))
        status, log = hosts[-1].end()
        assert status == 2 and word in log and "Traceback" not in log, log
    finally:
        listening.close()


def greeted(port: int, answer: bytes | None) -> bytes:
    """What a front end says to a stranger; b"" when it hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        challenge = msgspec.msgpack.decode(receive_frame(connection), type=Challenge)
        if answer is None:
            answer = encode(Hello(1, {}, b"n" * 32, proof("wrong", "host", challenge.number)))
        try:
            send_frame(connection, answer)
            return receive_frame(connection)
        except (EOFError, ConnectionError):
            return b""


def test_strangers_get_nothing(port):
    listening = RemoteHosts("127.0.0.1", port, "k", [1])
    listening.accept({})
    try:
        assert greeted(port, b"\x80\x04cos\nsystem\n") == b""  # a pickle is no message
        assert greeted(port, b"x" * 2**17) == b""  # more than a greeting
        assert msgspec.msgpack.decode(greeted(port, None), type=Greeting).refusal is not None
        assert listening.link(1) is None
    finally:
        listening.close()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigError, match="cannot listen"):
        RemoteHosts("127.0.0.1", port, "k", [1])


def test_a_front_end_listens_only_where_it_is_told(tiny_llama):
    with pytest.raises(ConfigError, match="data_parallel_address"):
        LLM(str(tiny_llama), **SMALL, data_parallel_size=2, data_parallel_size_local=1)


def test_who_knocks_and_says_nothing_keeps_no_host_out(port, monkeypatch):
    """As many as the front end may open files: those that come later are let in when there are some again."""
    hosts = RemoteHosts("127.0.0.1", port, "k", [1])
    accept, failures = hosts._listener.accept, iter([OSError(errno.EMFILE, "too many open files")])

    class Listener:
        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

        def accept(self) -> Any:
            for failure in failures:
                raise failure
            return accept()

    listener, hosts._listener = hosts._listener, Listener()  # type: ignore[assignment]
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
    hosts.accept({})
    before = threading.active_count()
    wait_until(lambda: receive_frame(silent[0]))
    assert threading.active_count() < before + 40
    for one in silent:
        one.close()
    connection = socket.create_connection(("127.0.0.1", port))
    challenge = msgspec.msgpack.decode(receive_frame(connection), type=Challenge)
    send_frame(connection, encode(Hello(1, {}, b"n", proof("k", "host", challenge.number))))
    assert msgspec.msgpack.decode(receive_frame(connection), type=Greeting).refusal is None
    hosts.close()
    connection.close()


def test_what_fills_a_connection_is_sent_whole_though_an_event_loop_has_made_it_non_blocking():
    ours, theirs = socket.socketpair()
    link = HostLink(ours)
    os.set_blocking(ours.fileno(), False)
    link.send(ToHosted(b"x" * 2**23))
    link.send(ConnectHosted())
    assert [type(decode_to_host(receive_frame(theirs))) for _ in range(2)] == [ToHosted, ConnectHosted]
    theirs.close()
    link.send(ConnectHosted())
    wait_until(lambda: link.reader.read() or link.reader.is_ended)


def test_a_network_that_is_gone_is_the_end_of_a_connection():
    class Unreachable:
        def recv(self, *_: object) -> bytes:
            raise OSError(errno.EHOSTUNREACH, "no route to host")

    reader = FrameReader(Unreachable())  # type: ignore[arg-type]
    assert reader.read() == [] and reader.is_ended


def test_a_host_waits_when_something_else_answers_at_its_front_ends_port_and_says_so_once(port, caplog):
    where = {"data_parallel_address": "127.0.0.1", "data_parallel_rpc_port": port, "data_parallel_start_rank": 1}
    args = EngineArgs(data_parallel_size=2, data_parallel_size_local=1, **where)
    replica = HostedReplica(args, 1, "", {}, zmq.Context.instance(), "", SimpleQueue())
    with socket.create_server(("127.0.0.1", port)) as other, caplog.at_level(logging.INFO, "octavo"):
        replica.start()
        for _ in range(2):  # it comes again
            connection, _ = other.accept()
            send_frame(connection, b"\xc1\xc1")
            connection.close()
    replica.stop()
    assert not replica.is_alive()
    assert caplog.text.count(f"replica 1 waits for a front end at 127.0.0.1:{port}") == 1
