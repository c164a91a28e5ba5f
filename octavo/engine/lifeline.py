"""The socket pair between a front end and its core's process: each side sees at once when the other is gone.

It also carries the few messages that must arrive whatever happens to their sender a moment later: the kernel has them
as soon as they are sent.
"""

from __future__ import annotations

import socket

_LENGTH_BYTES = 4
_READ_BYTES = 1 << 16


def send_frame(connection: socket.socket, data: bytes) -> None:
    """Send one message. Raises BlockingIOError if a non-blocking peer does not read."""
    connection.sendall(len(data).to_bytes(_LENGTH_BYTES, "little") + data)


def receive_frame(connection: socket.socket) -> bytes:
    """Wait for one message; raises EOFError when the other side is gone."""
    length = int.from_bytes(_receive_exactly(connection, _LENGTH_BYTES), "little")
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        piece = connection.recv(num_bytes - len(data))
        if not piece:
            raise EOFError("the other side is gone")
        data += piece
    return bytes(data)


class FrameReader:
    """Reads the messages of a non-blocking connection. is_ended: the other side is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self.is_ended = False
        self._connection = connection
        self._data = bytearray()

    def read(self) -> list[bytes]:
        """Return the messages that are there now."""
        while not self.is_ended:
            try:
                piece = self._connection.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionError:
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
