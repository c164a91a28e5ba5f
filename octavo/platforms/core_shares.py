"""Cores for several processes that compute at the same time: each its own, neighbours together (Linux)."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from octavo import envs
from octavo.log import get_logger
from octavo.platforms import cpu

logger = get_logger(__name__)

_NODES = Path("/sys/devices/system/node")
_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class CoreShare:
    """What one process shall compute on. cores: logical ones to stay on; empty: all that it may use anyway."""

    cores: tuple[int, ...]
    num_threads: int


def core_shares(count: int) -> list[CoreShare]:
    """Divide the cores that this process may use among `count` processes; logs a warning when there are too few.

    OCTAVO_NUM_THREADS, the threads of each, leaves it to the system where they run.
    """
    usable = cpu.usable_cores()
    wish = envs.num_threads()
    num_threads = wish or max(1, usable // count)
    if num_threads * count > usable:
        logger.warning(
            "%d processes of %d threads compute on %d cores: they take turns, which is slower than fewer processes",
            count,
            num_threads,
            usable,
        )
    if wish or count == 1 or count > usable or not hasattr(os, "sched_getaffinity"):
        return [CoreShare((), num_threads)] * count
    groups = _neighbours(os.sched_getaffinity(0))
    if len(groups) < count:
        groups = [[core] for group in groups for core in group]
    bounds = [len(groups) * i // count for i in range(count + 1)]
    return [
        CoreShare(tuple(core for group in groups[start:end] for core in group), num_threads)
        for start, end in itertools.pairwise(bounds)
    ]


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
