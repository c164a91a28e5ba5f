"""Processes of our own: how they start, and how they end for certain. Knows nothing of what they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_SETUP = "import json, sys; sys.path[:], arguments = json.loads(sys.argv[1]); "
_KILL_TIMEOUT_S = 5.0
_THREAD_NICENESS = 10


def start_python(program: str, arguments: Sequence[object] = (), **options: Any) -> subprocess.Popen[bytes]:
    """Start a few statements of Python, which find plain data as `arguments` and import from where this process does.

    Not multiprocessing: its spawn runs the user's main module again, and starts a resource tracker that can be left
    over. options: of Popen
    """
    data = json.dumps([list(map(str, sys.path)), arguments])
    return subprocess.Popen([sys.executable, "-c", _SETUP + program, data], **options)


def lower_priority(process_id: int, niceness: int) -> None:
    """Let a process that has just started give way to others, where the system allows it."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process_id, niceness)
    with suppress(OSError):  # Linux may weigh sessions, and processes only within theirs
        Path(f"/proc/{process_id}/autogroup").write_text(str(niceness), encoding="ascii")


def lower_thread_priority(thread_id: int) -> None:
    """Let a thread (by its native id) give way to those that compute, where the system has priorities for threads."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, thread_id, _THREAD_NICENESS)


def end_child(process: subprocess.Popen[bytes]) -> int:
    """Kill a process unless it has ended; return its exit status, negative for a signal."""
    process.kill()
    try:
        return process.wait(_KILL_TIMEOUT_S)
    except subprocess.TimeoutExpired:  # stuck in the kernel (a dead network disk): it ends when that lets it go
        return -signal.SIGKILL


def end_process(status: int) -> NoReturn:
    """End this one without the interpreter's farewell, which would wait for threads and free memory piece by piece."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # nobody reads it, it is closed, or there is none
            stream.flush()
    os._exit(status)
