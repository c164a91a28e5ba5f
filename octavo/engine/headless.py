"""A host of engine replicas whose front end is on another machine: starts their processes and passes messages on.

The host chooses what its processes run: its own options hold, but for the limits that all replicas share.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import signal
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from queue import SimpleQueue

import msgspec
import zmq

from octavo import envs
from octavo.config import EngineArgs
from octavo.config.option_types import canonical_types
from octavo.engine import host_messages as wire
from octavo.engine.core_child import CoreChild
from octavo.engine.core_messages import StartCore, StopCore, options_as_data
from octavo.engine.data_parallel import DEFAULT_PORT, plan_replicas
from octavo.engine.engine_facts import engine_facts
from octavo.engine.meeting_place import MeetingPlace
from octavo.engine.remote_hosts import keep_alive
from octavo.errors import ConfigError, EngineDeadError
from octavo.log import get_logger
from octavo.utils.frames import FrameReader, receive_frame, send_frame

logger = get_logger(__name__)

_CONNECT_TIMEOUT_S = 600.0  # for a front end that starts later, or again
_RETRY_S = 1.0


def run_headless(args: EngineArgs) -> None:
    """Run replicas for a front end elsewhere until it ends, or until SIGINT or SIGTERM; raises what is wrong."""
    args = canonical_types(args)
    if args.data_parallel_address is None or args.data_parallel_hybrid_lb or args.data_parallel_rank is not None:
        raise ConfigError(
            "--headless runs replicas for a front end elsewhere: give data_parallel_size, of these replicas "
            "data_parallel_size_local and data_parallel_start_rank, and the front end's data_parallel_address; no "
            "hybrid and no external balancing"
        )
    local = plan_replicas(args).local
    if not local:
        raise ConfigError("--headless: data_parallel_size_local must be at least 1")
    host = ReplicaHost(args, local, envs.data_parallel_key())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: host.outcomes.put(None))
    try:
        host.wait()
    finally:
        host.close()


class ReplicaHost:
    """Replicas of this machine, each with a connection to the front end of `args`.

    outcomes: None ends `wait`, an exception is raised there
    """

    def __init__(self, args: EngineArgs, ranks: Sequence[int], key: str) -> None:
        """Raises what is wrong with the options. key: what the front end must have too"""
        from octavo.engine.resolve import resolve

        facts = engine_facts(args, resolve(replace(args, skip_tokenizer_init=True)).config)
        self.outcomes: SimpleQueue[Exception | None] = SimpleQueue()
        self._place, self._context = MeetingPlace(), zmq.Context()
        directory = str(self._place.path)
        self._replicas = [
            HostedReplica(args, rank, key, facts, self._context, directory, self.outcomes) for rank in ranks
        ]
        for replica in self._replicas:
            replica.start()

    def wait(self) -> None:
        """Return when the front end has ended; raises what keeps a replica from going on."""
        outcome = self.outcomes.get()
        if outcome is not None:
            raise outcome

    def close(self) -> None:
        """End the processes and leave nothing behind."""
        for replica in self._replicas:
            replica.stop()
        self._context.destroy(linger=0)
        self._place.remove()


class HostedReplica(threading.Thread):
    """One replica: its connection, and its present process."""

    def __init__(
        self,
        args: EngineArgs,
        rank: int,
        key: str,
        facts: dict[str, str],
        context: zmq.Context[zmq.Socket[bytes]],
        directory: str,
        outcomes: SimpleQueue[Exception | None],
    ) -> None:
        """outcomes: told None when the front end has ended, or what keeps this replica from going on"""
        super().__init__(name=f"octavo-replica-{rank}", daemon=True)
        self._rank = rank
        self._key = key
        self._local = plan_replicas(args).local
        self._options = options_as_data(args)
        self._where = (args.data_parallel_address or "", args.data_parallel_rpc_port or DEFAULT_PORT)
        self._facts = facts
        self._context = context
        self._directory = directory
        self._outcomes = outcomes
        self._connection: socket.socket | None = None
        self._child: CoreChild | None = None
        self._is_stopping = False
        self._is_dismissed = False

    def run(self) -> None:
        try:
            while not self._is_stopping and not self._is_dismissed:
                with self._connect() as self._connection:
                    logger.info("replica %d is at the disposal of %s:%d", self._rank, *self._where)
                    self._serve(self._connection)
                if not self._is_dismissed and not self._is_stopping:
                    logger.warning("replica %d has lost its front end; waiting for it", self._rank)
            self._outcomes.put(None)
        except Exception as error:
            self._outcomes.put(error)

    def stop(self) -> None:
        """End the process and the thread."""
        self._is_stopping = True
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        if self.is_alive():
            self.join(10.0)

    def _connect(self) -> socket.socket:
        """Return a connection to the front end, which need not be there yet."""
        deadline = time.monotonic() + _CONNECT_TIMEOUT_S
        is_told = False
        while True:
            try:
                connection = socket.create_connection(self._where, timeout=5.0)
                self._greet(connection)
                return connection
            except (OSError, EOFError, msgspec.MsgspecError) as error:
                host, port = self._where
                if self._is_stopping or time.monotonic() > deadline:
                    raise EngineDeadError(f"no front end of these replicas at {host}:{port}: {error}") from error
                if not is_told:
                    is_told = True
                    logger.info("replica %d waits for a front end at %s:%d (%s)", self._rank, host, port, error)
            time.sleep(_RETRY_S)

    def _greet(self, connection: socket.socket) -> None:
        """Make sure that both sides mean the same; raises ConfigError."""
        number = secrets.token_bytes(32)
        deadline = time.monotonic() + 5.0
        challenge = msgspec.msgpack.decode(receive_frame(connection, deadline), type=wire.Challenge)
        hello = wire.Hello(self._rank, self._facts, number, wire.proof(self._key, "host", challenge.number))
        send_frame(connection, wire.encode(hello))
        greeting = msgspec.msgpack.decode(receive_frame(connection, deadline), type=wire.Greeting)
        if greeting.refusal is not None:
            raise ConfigError(f"the front end refuses replica {self._rank}: {greeting.refusal}")
        if not hmac.compare_digest(greeting.proof, wire.proof(self._key, "front end", number)):
            raise ConfigError("the front end does not have this host's OCTAVO_DATA_PARALLEL_KEY")
        connection.settimeout(None)
        keep_alive(connection)

    def _serve(self, connection: socket.socket) -> None:
        """Pass on what either side says, until the connection ends."""
        reader = FrameReader(connection)
        try:
            while not (reader.is_ended or self._is_dismissed):
                poller = zmq.Poller()
                poller.register(connection.fileno(), zmq.POLLIN)
                if self._child is not None:
                    self._child.register(poller)
                poller.poll()
                for data in reader.read():
                    self._obey(connection, wire.decode_to_host(data))
                if self._child is not None:
                    self._report(connection, self._child)
        except OSError:  # the connection has ended while something was sent
            pass
        finally:
            self._end_child(asks_first=False)

    def _obey(self, connection: socket.socket, message: wire.ToHost) -> None:
        if isinstance(message, wire.StartHosted):
            self._end_child(asks_first=False)
            limits = {name: message.limits[name] for name in wire.SHARED_LIMITS if name in message.limits}
            start = StartCore({**self._options, **limits}, message.number, self._rank, len(self._local))
            share = (self._rank - self._local.start, len(self._local))
            self._child = CoreChild(self._context, self._directory, start, share)
            _send(connection, wire.HostedStarted(message.number, self._child.process_id))
        elif isinstance(message, wire.EndHosted):
            self._end_child(message.asks_first)
        elif isinstance(message, wire.Farewell):
            if message.fault is not None:
                raise EngineDeadError(message.fault)
            self._is_dismissed = True
        elif self._child is None:
            pass  # it has just ended, and the front end will hear of it
        elif isinstance(message, wire.ConnectHosted):
            self._child.connect()
        elif isinstance(message, wire.ToHosted):
            self._child.send(message.data)

    def _report(self, connection: socket.socket, child: CoreChild) -> None:
        for message in child.receive():
            _send(connection, wire.HostedMessage(wire.encode(message)))
        notes, is_gone = child.read_notes()
        for note in notes:
            _send(connection, wire.HostedNote(wire.encode(note)))
        if is_gone:
            self._child = None
            _send(connection, wire.HostedEnded(child.close()))

    def _end_child(self, asks_first: bool) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close(wire.encode(StopCore()) if asks_first else None)


def _send(connection: socket.socket, message: wire.FromHost) -> None:
    send_frame(connection, wire.encode(message))
