"""Cores for several processes that compute at the same time: each its own, neighbours together (Linux)."""

from __future__ import annotations

import os
from pathlib import Path

from octavo import envs
from octavo.log import get_logger
from octavo.platforms import cpu

logger = get_logger(__name__)

_NODES = Path("/sys/devices/system/node")
_CPUS = Path("/sys/devices/system/cpu")


def take_share(index: int, count: int, max_cores: int | None = None) -> None:
    """Keep this process, one of `count` that were given the same cores, to its own part of them.

    OCTAVO_NUM_THREADS, the threads of each, leaves it to the system where they run. Where there are too few cores, the
    first process logs a warning. Call it before libraries are imported that start threads.

    max_cores: how many all of them may keep busy, if fewer than this process finds
    """
    if max_cores is not None:
        cpu.limit_cores(max_cores)
    usable = cpu.usable_cores()
    wish = envs.num_threads()
    num_threads = wish or max(1, usable // count)
    if index == 0 and num_threads * count > usable:
        logger.warning(
            "%d processes of %d threads compute on %d cores: they take turns, which is slower than fewer processes",
            count,
            num_threads,
            usable,
        )
    if wish or count == 1:
        return
    cpu.limit_cores(num_threads)
    if count <= usable and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, _share_of(index, count))


def _share_of(index: int, count: int) -> list[int]:
    groups = _neighbours(os.sched_getaffinity(0))
    if len(groups) < count:
        groups = [[core] for group in groups for core in group]
    own = groups[len(groups) * index // count : len(groups) * (index + 1) // count]
    return [core for group in own for core in group]


def _neighbours(cores: set[int]) -> list[list[int]]:
    """Group logical cores by the physical one; those of one memory node follow each other."""
    node_of = {
        core: int(path.parent.name.removeprefix("node"))
        for path in _NODES.glob("node[0-9]*/cpulist")
        for core in _read_list(path)
    }
    groups: dict[tuple[int, ...], list[int]] = {}
    for core in sorted(cores, key=lambda core: (node_of.get(core, 0), core)):
        siblings = _read_list(_CPUS / f"cpu{core}/topology/thread_siblings_list")
        groups.setdefault(tuple(siblings) or (core,), []).append(core)
    return list(groups.values())


def _read_list(path: Path) -> list[int]:
    """Read the system's notation of several cores: "0-3,8"."""
    try:
        parts = path.read_text().strip().split(",")
        spans = [tuple(map(int, part.split("-"))) for part in parts if part]
    except (OSError, ValueError):
        return []
    return [core for span in spans for core in range(span[0], span[-1] + 1)]
