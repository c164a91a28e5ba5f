"""Messages over a socket pair: whole, in order, and the end of the other side."""

from __future__ import annotations

import socket
import time

import pytest

from octavo.utils.frames import FrameReader, receive_frame, send_frame


def test_frames_arrive_whole_in_order_and_then_the_end():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader = FrameReader(ours)
    assert reader.read() == []
    for data in (b"", b"one", b"x" * 100_000):
        send_frame(theirs, data)
    theirs.close()
    assert reader.read() == [b"", b"one", b"x" * 100_000]
    assert reader.is_ended
    ours.close()


def test_a_frame_may_arrive_in_pieces():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader = FrameReader(ours)
    for byte in b"\x03\x00\x00\x00abc":
        theirs.send(bytes([byte]))
        frames = reader.read()
    assert frames == [b"abc"] and not reader.is_ended
    ours.close()
    theirs.close()


def test_waiting_for_a_frame_ends_when_the_other_side_is_gone():
    ours, theirs = socket.socketpair()
    theirs.send(b"\x03\x00\x00\x00ab")
    theirs.close()
    with pytest.raises(EOFError), ours:
        receive_frame(ours)


def test_waiting_for_a_frame_ends_at_the_deadline_even_inside_one():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((8).to_bytes(4, "little") + b"half")
        with pytest.raises(TimeoutError):
            receive_frame(ours, time.monotonic() + 0.01)
