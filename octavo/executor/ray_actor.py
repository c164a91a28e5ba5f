"""What runs in a Ray actor: one worker behind the messages that workers in processes of our own understand."""

from __future__ import annotations

import fcntl
import socket
import struct
import threading

from octavo import envs
from octavo.executor.messages import CallReply, ErrorReply, decode_start, encode
from octavo.executor.worker_proc import where_is
from octavo.executor.worker_server import WorkerServer
from octavo.platforms.core_shares import take_share
from octavo.types.raised_error import error_as_data


class RayWorker:
    """One worker. Calls of `start` and `handle` come one after the other; the others in threads of their own."""

    def free_address(self) -> str:
        """Return an address on this machine at which workers of several machines can meet."""
        import ray.util

        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"tcp://{host}:{probe.getsockname()[1]}"

    def start(self, data: bytes) -> bytes:
        """Load the weights; answers a StartWorker."""
        self._thread = threading.get_ident()
        try:
            start = decode_start(data)
            _speak_as_ray_does()
            take_share(start.place.local_rank, start.place.local_size)
            self._server = WorkerServer(start)
        except Exception as error:
            return encode(ErrorReply(0, error_as_data(error)))
        return encode(CallReply(0, None))

    def handle(self, data: bytes) -> bytes | None:
        """Execute a command; return the reply, if there is to be one."""
        return self._server.handle(data)

    def where(self) -> str:
        """Say what the worker is doing."""
        return where_is(self._thread)

    def live(self) -> None:
        """Return never: whoever waits for it learns of the end of this process."""
        threading.Event().wait()


def _speak_as_ray_does() -> None:
    """Choose Ray's network interface for gloo, which would take the one of the host's name: often the loopback."""
    import ray.util

    address = ray.util.get_node_ip_address()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                envs.use_interface(name)


_SIOCGIFADDR = 0x8915
