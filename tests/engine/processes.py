"""What tests need to look at processes from outside, and to compare results exactly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo import RequestOutput

SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 2**22, "max_num_batched_tokens": 64, "max_num_seqs": 32}
DEADLINE_S = 60


def comparable(output: RequestOutput) -> list[Any]:
    """Everything that a user sees of a result, exactly."""
    seen: list[Any] = [output.prompt_logprobs]
    for c in output.outputs:
        text_and_ids = (c.index, c.text, tuple(c.token_ids))
        seen.append((*text_and_ids, c.cumulative_logprob, c.logprobs, c.finish_reason, c.stop_reason))
    return seen


def children_of(process_id: int) -> list[int]:
    """Return the living children of a process; those that have ended and wait to be reaped are none."""
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == process_id and fields[0] != "Z":
            children.append(int(path.parent.name))
    return children


def is_alive(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail when it does not for a long time."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def shared_memory() -> set[str]:
    """Return the names of what engines have in shared memory now."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("octavo-")}


def num_file_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
