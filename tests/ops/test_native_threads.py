"""The thread pool: resizing, callers on several threads, forks, and sleep when there is nothing to do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from octavo import _native
from octavo.ops.interface import Ops


def test_the_pool_can_be_resized_and_needs_a_thread(native: Ops) -> None:
    for count in (3, 1, 2):
        _native.set_num_threads(count)
        assert _native.num_threads() == count
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        _native.set_num_threads(0)


def test_callers_on_several_threads_get_their_own_results(native: Ops) -> None:
    """The pool serves one caller at a time; the others compute by themselves, also while it is replaced."""
    generator = np.random.default_rng(0)
    packed = native.pack([generator.standard_normal((300, 200)).astype(np.float32)])
    inputs = [generator.standard_normal((64, 200)).astype(np.float32) for _ in range(4)]
    expected = [native.linear(x, packed) for x in inputs]
    wrong: list[int] = []

    def call(index: int) -> None:
        for _ in range(50):
            if not np.array_equal(native.linear(inputs[index], packed), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for count in (1, 2, 3, 2):
        _native.set_num_threads(count)
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_computes_with_a_pool_of_its_own(native: Ops) -> None:
    code = """
import os, sys
import numpy as np
from octavo.ops.native import NativeOps, _native
_native.set_num_threads(3)
ops = NativeOps()
packed = ops.pack([np.ones((512, 256), np.float32)])
x = np.ones((200, 256), np.float32)
expected = ops.linear(x, packed)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(ops.linear(x, packed), expected) else 1)
_, status = os.waitpid(child, 0)
assert np.array_equal(ops.linear(x, packed), expected)
sys.exit(os.waitstatus_to_exitcode(status))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads Linux's list of threads")
def test_idle_threads_sleep(native: Ops) -> None:
    before = set(os.listdir("/proc/self/task"))
    _native.set_num_threads(1)
    _native.set_num_threads(3)
    packed = native.pack([np.ones((512, 256), np.float32)])
    native.linear(np.ones((200, 256), np.float32), packed)
    workers = set(os.listdir("/proc/self/task")) - before
    assert len(workers) == 2
    deadline = time.monotonic() + 30
    while any(_state(worker) != "S" for worker in workers):
        assert time.monotonic() < deadline, "a worker still runs with nothing to do"
        time.sleep(0.01)


def _state(thread_id: str) -> str:
    """Return the thread's state as one letter; S: it sleeps."""
    return Path(f"/proc/self/task/{thread_id}/stat").read_text().rpartition(")")[2].split()[0]
