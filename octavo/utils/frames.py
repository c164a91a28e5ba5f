"""Messages over a stream socket between two processes of ours: four bytes of length, little-endian, and the message.

Each side sees at once when the other is gone. The kernel has a message as soon as it is sent, so it arrives whatever
happens to its sender a moment later.
"""

from __future__ import annotations

import socket
import time

_LENGTH_BYTES = 4
_MAX_FRAME_BYTES = 2**30
_READ_BYTES = 1 << 16


def send_frame(connection: socket.socket, data: bytes) -> None:
    """Send one message. Raises BlockingIOError if a non-blocking peer does not read."""
    connection.sendall(framed(data))


def framed(data: bytes) -> bytes:
    """Return a message as it is sent."""
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


def receive_frame(connection: socket.socket, deadline: float | None = None, max_bytes: int = _MAX_FRAME_BYTES) -> bytes:
    """Return the next message. Raises EOFError when none will come, TimeoutError at time.monotonic() = deadline."""
    size = int.from_bytes(_receive(connection, _LENGTH_BYTES, deadline), "little")
    if size > max_bytes:
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


class FrameReader:
    """Reads the messages of a connection without blocking. is_ended: the other side is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self.is_ended = False
        self._connection = connection
        self._data = bytearray()

    def read(self) -> list[bytes]:
        """Return the messages that are there now."""
        while not self.is_ended:
            try:
                piece = self._connection.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:  # a peer that is gone, or a network to it: no route, no answer
                piece = b""
            self.is_ended = not piece
            self._data += piece
        frames = []
        while len(self._data) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._data[:_LENGTH_BYTES], "little")
            if len(self._data) < end:
                break
            frames.append(bytes(self._data[_LENGTH_BYTES:end]))
            del self._data[:end]
        return frames
