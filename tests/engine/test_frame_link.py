"""Messages between two event loops: in order, however slow the reader, and the end is told."""

from __future__ import annotations

import asyncio
import socket

from octavo.engine.frame_link import FrameLink


def test_what_the_system_does_not_take_at_once_arrives_in_order():
    async def run() -> list[bytes]:
        got: list[bytes] = []
        mine, theirs = socket.socketpair()
        ended = asyncio.Event()
        reader = FrameLink(theirs, got.append, ended.set)
        writer = FrameLink(mine, lambda data: None, lambda: None)
        writer.attach()
        for number in range(200):  # more than a socket holds; nobody reads yet, and nothing waits
            writer.send(bytes([number]) * 100_000)
        reader.attach()
        while len(got) < 200:
            await asyncio.sleep(0.001)
        writer.close()
        await asyncio.wait_for(ended.wait(), 10)
        return got

    assert asyncio.run(run()) == [bytes([number]) * 100_000 for number in range(200)]


def test_sending_to_one_that_is_gone_is_nothing_and_its_end_is_told_once():
    async def run() -> int:
        ends: list[None] = []
        mine, theirs = socket.socketpair()
        link = FrameLink(mine, lambda data: None, lambda: ends.append(None))
        link.attach()
        theirs.close()
        for _ in range(3):
            link.send(b"x" * 1_000_000)
            await asyncio.sleep(0.01)
        link.close()
        return len(ends)

    assert asyncio.run(run()) == 1
