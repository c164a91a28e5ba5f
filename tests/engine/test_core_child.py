"""The front end's hold on a core's process, with a process that does nothing and a test that speaks for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import zmq

from octavo.engine import core_child
from octavo.engine.core_child import CoreChild, core_addresses
from octavo.engine.core_messages import CoreFailed, StartCore, StepDone, encode
from octavo.types.messages import EngineCoreOutputs
from octavo.utils.frames import send_frame
from tests.engine.processes import wait_until


@pytest.mark.parametrize("num_announced", [0, 2])
def test_what_a_failed_core_has_sent_is_received_before_its_end(num_announced, tmp_path, monkeypatch):
    theirs = []

    def start(program, arguments, pass_fds, **options):
        theirs.append(socket.socket(fileno=os.dup(pass_fds[0])))
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(core_child, "start_python", start)
    context = zmq.Context()
    order = StartCore({}, 0, 0, 1)
    child = CoreChild(context, str(tmp_path), order, (0, 1))
    send_frame(theirs[0], encode(CoreFailed("the books are wrong", num_announced)))
    theirs[0].close()
    assert not child.receive()
    (note,), is_gone = child.read_notes()
    assert note.reason == "the books are wrong"
    assert is_gone == (num_announced == 0)
    output = context.socket(zmq.PUSH)
    output.connect(core_addresses(str(tmp_path), order)[1])
    for _ in range(2):
        output.send(encode(StepDone(EngineCoreOutputs())))
    received = []
    wait_until(lambda: received.extend(child.receive()) or len(received) == 2)
    assert child.read_notes() == ([], True)
    child.close()
    output.close()
    context.term()
