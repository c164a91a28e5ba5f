"""Messages of any size reach every reader, in order, once; nobody waits for ever."""

from __future__ import annotations

import os
import random
import socket
import threading

import pytest

from octavo.executor import broadcast
from octavo.executor.broadcast import BroadcastReader, BroadcastWriter, create_memory


def queue(num_readers: int) -> tuple[BroadcastWriter, list[BroadcastReader]]:
    memory = create_memory(num_readers)
    pairs = [socket.socketpair() for _ in range(num_readers)]
    writer = BroadcastWriter(memory, [ours for ours, _ in pairs])
    readers = [BroadcastReader(memory, num_readers, i, theirs) for i, (_, theirs) in enumerate(pairs)]
    os.close(memory)
    return writer, readers


def test_readers_of_different_speed_get_every_message_in_order(monkeypatch):
    monkeypatch.setattr(broadcast, "_SLOT_BYTES", 1000)
    rng = random.Random(1)
    messages = [rng.randbytes(rng.choice([0, 1, 999, 1000, 1001, 300_000])) for _ in range(60)]
    writer, readers = queue(3)
    got: list[list[bytes]] = [[] for _ in readers]

    def read(index: int) -> None:
        pace = random.Random(index)
        while len(got[index]) < len(messages):
            if pace.random() < 0.2 * index:
                threading.Event().wait(0.002)
            got[index].append(readers[index].read())

    threads = [threading.Thread(target=read, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for message in messages:
        writer.write(message, timeout_s=30)
    for thread in threads:
        thread.join()
    assert got == [messages] * 3


def test_a_slow_reader_is_waited_for_until_the_time_is_over():
    writer, (fast, slow) = queue(2)
    written = 0
    with pytest.raises(TimeoutError):
        while True:
            writer.write(b"x", timeout_s=0.01)
            fast.read()
            written += 1
    assert [slow.read() for _ in range(written)] == [b"x"] * written
    writer.write(b"y", timeout_s=0.01)
    assert (fast.read(), slow.read()) == (b"y", b"y")


def test_a_reader_that_is_gone_is_no_reason_to_wait():
    writer, (reader,) = queue(1)
    with pytest.raises(ConnectionError):
        for number in range(20):
            if number == 5:
                reader._bell.close()
            writer.write(b"x")


def test_readers_get_what_was_written_and_then_the_end():
    writer, (reader,) = queue(1)
    writer.write(b"last")
    writer.close()
    writer.close()
    assert reader.read() == b"last"
    with pytest.raises(EOFError):
        reader.read()
