"""The front end's side of replicas on other machines: where their hosts connect, and the hold on one process there."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue

import msgspec
import zmq

from octavo.engine import host_messages as wire
from octavo.engine.core_messages import (
    CoreFailed,
    FrontMessage,
    Note,
    StartCore,
    StepDone,
    decode_front_message,
    decode_note,
)
from octavo.errors import ConfigError
from octavo.log import get_logger
from octavo.types.messages import EngineCoreOutputs
from octavo.utils.frames import FrameReader, framed, receive_frame, send_frame

logger = get_logger(__name__)

_GREETING_TIMEOUT_S = 5.0
_MAX_GREETINGS = 32  # at a time: whoever knocks and says nothing does not use up what the front end may open
_RETRY_S = 0.5
_SEND_TIMEOUT_S = 3600.0  # a peer that is gone is noticed long before
_MAX_GREETING_BYTES = 2**16


class HostLink:
    """The connection of one replica's host. Sending never waits; `reader` says when it has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.reader = FrameReader(connection)
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        # An event loop makes the descriptor non-blocking: with a time limit sending waits all the same. A socket object
        # of its own has the limit, for reading must not wait.
        sending = connection.dup()
        sending.settimeout(_SEND_TIMEOUT_S)
        self._sender = threading.Thread(target=self._send_all, args=(sending,), name="octavo-host", daemon=True)
        self._sender.start()

    def send(self, message: wire.ToHost) -> None:
        """Send a message; nothing happens when the connection has ended."""
        self._outbox.put(framed(wire.encode(message)))

    def close(self) -> None:
        """End the connection when everything is sent, or after a short while."""
        self._outbox.put(None)
        self._sender.join(1.0)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send_all(self, sending: socket.socket) -> None:
        with sending:
            try:
                while (data := self._outbox.get()) is not None:
                    sending.sendall(data)
            except OSError:
                with contextlib.suppress(OSError):
                    sending.shutdown(socket.SHUT_RDWR)  # so its end is seen by who reads


class RemoteHosts:
    """Listens for hosts, in a thread of its own; the newest connection of a rank counts."""

    def __init__(self, address: str, port: int, key: str, ranks: Sequence[int]) -> None:
        """Raises ConfigError when it cannot listen there. key: what hosts must have too; "": anybody may come"""
        self._ranks = ranks
        self._key = key
        self._facts: Mapping[str, str] = {}
        self._links: dict[int, HostLink] = {}
        self._changed = threading.Condition()
        self._greetings = threading.Semaphore(_MAX_GREETINGS)
        try:
            family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            self._listener = socket.create_server(where[:2], family=family)
        except OSError as error:
            raise ConfigError(f"data_parallel_address: cannot listen on {address}:{port}: {error}") from error
        self.port = int(self._listener.getsockname()[1])
        self._where = f"{address}:{self.port}"
        if not key and not self._listener.getsockname()[0].startswith(("127.", "::1")):
            logger.warning(
                "anybody who reaches %s can take requests as a replica: set OCTAVO_DATA_PARALLEL_KEY here and on the "
                "hosts, and keep the network private, for nothing is encrypted",
                self._where,
            )

    def accept(self, facts: Mapping[str, str]) -> None:
        """Let hosts in from now on. facts: what they must compute, by name"""
        self._facts = facts
        threading.Thread(target=self._accept_all, name="octavo-hosts", daemon=True).start()

    def wait_for(self, rank: int, check: Callable[[], None]) -> None:
        """Wait until the host of a rank has connected. check: is called now and then, and may raise why it will not"""
        with self._changed:
            if rank not in self._links:
                logger.info("waiting at %s for the host of replica %d", self._where, rank)
            while rank not in self._links:
                check()
                self._changed.wait(_RETRY_S)

    def link(self, rank: int) -> HostLink | None:
        """Return the connection of a rank's host, None while there is none."""
        with self._changed:
            link = self._links.get(rank)
            return None if link is None or link.reader.is_ended else link

    def close(self) -> None:
        """Let the hosts go; idempotent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for the next host
        self._listener.close()
        with self._changed:
            links, self._links = self._links, {}
        for link in links.values():
            link.send(wire.Farewell())
            link.close()

    def _accept_all(self) -> None:
        while self._listener.fileno() >= 0:
            self._greetings.acquire()
            try:
                connection, peer = self._listener.accept()
            except OSError:  # closed, or for now there is no file descriptor for it
                self._greetings.release()
                time.sleep(_RETRY_S)
                continue
            threading.Thread(target=self._greet_one, args=(connection, peer[0]), daemon=True).start()

    def _greet_one(self, connection: socket.socket, peer: str) -> None:
        try:
            self._greet(connection, peer)
        finally:
            self._greetings.release()

    def _greet(self, connection: socket.socket, peer: str) -> None:
        """Let a host in, or tell it why not."""
        try:
            connection.settimeout(_GREETING_TIMEOUT_S)
            number = secrets.token_bytes(32)
            deadline = time.monotonic() + _GREETING_TIMEOUT_S
            send_frame(connection, wire.encode(wire.Challenge(number)))
            hello = msgspec.msgpack.decode(receive_frame(connection, deadline, _MAX_GREETING_BYTES), type=wire.Hello)
            refusal = self._refusal(hello, number)
            answer = wire.Greeting(
                refusal, wire.proof(self._key, "front end", hello.number) if refusal is None else b""
            )
            send_frame(connection, wire.encode(answer))
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            logger.warning("%s is no host of a replica: %s", peer, error)
            connection.close()
            return
        if refusal is not None:
            logger.warning("the host at %s is refused: %s", peer, refusal)
            connection.close()
            return
        connection.settimeout(None)
        keep_alive(connection)
        logger.info("replica %d is at %s", hello.rank, peer)
        with self._changed:
            before, self._links[hello.rank] = self._links.get(hello.rank), HostLink(connection)
            self._changed.notify_all()
        if before is not None:  # if it lives it must not come back for its place, again and again
            before.send(wire.Farewell(f"another host, at {peer}, has taken the place of replica {hello.rank}"))
            before.close()

    def _refusal(self, hello: wire.Hello, number: bytes) -> str | None:
        if not hmac.compare_digest(hello.proof, wire.proof(self._key, "host", number)):
            return "OCTAVO_DATA_PARALLEL_KEY is not the same on both sides"
        names = [name for name in self._facts if self._facts[name] != hello.facts.get(name)]
        if names:
            differing = "; ".join(
                f"{name} is {self._facts[name]} here, {hello.facts.get(name)} there" for name in names
            )
            return f"it would compute something else: {differing[:1000]}"
        if hello.rank not in self._ranks:
            return f"rank {hello.rank} is none of those that run elsewhere: {', '.join(map(str, self._ranks))}"
        return None


class RemoteChild:
    """A replica's process on another machine; to a supervisor the same as a CoreChild."""

    def __init__(self, link: HostLink, start: StartCore) -> None:
        self._link = link
        self._number = start.number
        self._is_started = False
        self._status: int | None = None
        self._messages: list[FrontMessage] = []
        self._notes: list[Note] = []
        self._process_id = 0
        limits = {name: start.options[name] for name in wire.SHARED_LIMITS if start.options.get(name) is not None}
        link.send(wire.StartHosted(start.number, limits))
        self.output_fd = self.lifeline_fd = link.connection.fileno()

    @property
    def process_id(self) -> int:
        """Its number on its own machine; 0 until it has started."""
        return self._process_id

    def connect(self) -> None:
        self._link.send(wire.ConnectHosted())

    def send(self, message: bytes) -> None:
        self._link.send(wire.ToHosted(message))

    def receive(self) -> list[FrontMessage]:
        self._read()
        messages, self._messages = self._messages, []
        return messages

    def read_notes(self) -> tuple[list[Note], bool]:
        notes, self._notes = self._notes, []
        return notes, self._status is not None

    def register(self, poller: zmq.Poller) -> None:
        poller.register(self.output_fd, zmq.POLLIN)

    def close(self, stop_message: bytes | None = None) -> int:
        if self._status is None:
            self._link.send(wire.EndHosted(asks_first=stop_message is not None))
        return _LOST if self._status is None else self._status

    def _read(self) -> None:
        for data in self._link.reader.read():
            message = wire.decode_from_host(data)
            if isinstance(message, wire.HostedStarted):
                self._is_started = message.number == self._number
                self._process_id = message.process_id
            elif not self._is_started:
                continue  # of the process before
            elif isinstance(message, wire.HostedMessage):
                self._messages.append(_in_our_time(decode_front_message(message.data)))
            elif isinstance(message, wire.HostedNote):
                self._notes.append(decode_note(message.data))
            else:
                self._status = message.status
        if self._link.reader.is_ended and self._status is None:
            self._status = _LOST
            self._notes.append(CoreFailed("the connection to its host has ended"))


def _in_our_time(message: FrontMessage) -> FrontMessage:
    """Move the times of a step from its machine's clock to this one's, as if the step had ended now."""
    if isinstance(message, StepDone):
        outputs: EngineCoreOutputs = message.outputs
        offset = time.monotonic() - outputs.timestamp
        outputs.timestamp += offset
        for output in outputs.outputs:
            output.events = [msgspec.structs.replace(one, timestamp=one.timestamp + offset) for one in output.events]
    return message


def keep_alive(connection: socket.socket) -> None:
    """Send what there is at once, and notice a peer whose machine is gone (Linux: within 5 s)."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 5000)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_LOST = -signal.SIGKILL  # nobody's own doing: the connection or the machine is gone
