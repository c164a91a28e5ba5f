"""A connection between two event loops: messages in order, without ever waiting for the other side."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from octavo.utils.frames import FrameReader, framed


class FrameLink:
    """One end. What the system does not take at once is kept and sent when it does.

    on_message: called with each message; on_end: called once, when the other side is gone
    """

    def __init__(
        self, connection: socket.socket, on_message: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._reader = FrameReader(connection)
        self._on_message = on_message
        self._on_end = on_end
        self._unsent = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Begin to read and to write, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._connection, self._read)
        self._write()

    def send(self, message: bytes) -> None:
        """Send a message, now or later; needs `attach`. Nothing happens when the other side is gone."""
        was_idle = not self._unsent
        self._unsent += framed(message)
        if was_idle:
            self._write()

    def close(self) -> None:
        """Let the connection go; idempotent."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._connection)
            loop.remove_writer(self._connection)
        self._connection.close()

    def _read(self) -> None:
        for message in self._reader.read():
            self._on_message(message)
        if self._reader.is_ended and self._loop is not None:
            self.close()
            self._on_end()

    def _write(self) -> None:
        if self._loop is None or not self._unsent:
            return
        try:
            del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except ConnectionError:  # its end is about to be read
            self._unsent.clear()
        if self._unsent:
            self._loop.add_writer(self._connection, self._write)
        else:
            self._loop.remove_writer(self._connection)
