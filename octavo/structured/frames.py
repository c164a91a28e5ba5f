"""Messages over a stream socket: a length of four bytes, little-endian, and so many bytes of msgpack."""

from __future__ import annotations

import socket
import time

_MAX_FRAME_BYTES = 2**30


def send_frame(connection: socket.socket, data: bytes) -> None:
    """Send one message."""
    connection.sendall(len(data).to_bytes(4, "little") + data)


def receive_frame(connection: socket.socket, deadline: float | None = None) -> bytes:
    """Return the next message. Raises EOFError when none will come, TimeoutError at time.monotonic() = deadline."""
    size = int.from_bytes(_receive(connection, 4, deadline), "little")
    if size > _MAX_FRAME_BYTES:
        raise EOFError(f"a message of {size} bytes: the other side has lost its way")
    return _receive(connection, size, deadline)


def _receive(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    pieces: list[bytes] = []
    while size:
        if deadline is not None:
            # zero would mean "do not block"
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            piece = connection.recv(min(size, 2**20))
        except TimeoutError:
            raise TimeoutError("no answer in time") from None
        if not piece:
            raise EOFError("the connection was closed")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
