"""Memory and cores that this process may use, respecting cgroups and CPU affinity (Linux); elsewhere the machine's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_CGROUP = Path("/sys/fs/cgroup")
_PROCESS_CGROUPS = Path("/proc/self/cgroup")
_MEMINFO = Path("/proc/meminfo")


class _MemoryFiles(NamedTuple):
    limit: str
    used: str
    statistics: str
    file_cache: str  # key in `statistics` of the cache that the kernel drops before it refuses memory


_MEMORY_FILES = (
    _MemoryFiles("memory.max", "memory.current", "memory.stat", "inactive_file"),
    _MemoryFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"),
)


@dataclass(frozen=True)
class MemoryFacts:
    """Bytes that this process could ever have (total) and could have now (available)."""

    total_bytes: int
    available_bytes: int


def memory_facts() -> MemoryFacts:
    """Read the machine's memory and narrow it by the cgroup's limit, v2 or v1."""
    total, available = _machine_memory()
    for limit, used in _cgroup_limits():
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return MemoryFacts(total, available)


def usable_cores() -> int:
    """Return how many cores this process may use: affinity, cgroup quota (rounded up), `limit_cores`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    cores = min(cores, _most_cores)
    for folder in _cgroup_folders():
        quota = _read_words(folder / "cpu.max") or [
            *_read_words(folder / "cpu.cfs_quota_us"),
            *_read_words(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and quota[0].isdigit():  # "max" and -1 mean no quota
            cores = min(cores, -(-int(quota[0]) // int(quota[1])))
    return max(1, cores)


def limit_cores(count: int) -> None:
    """Let `usable_cores` be at most this many from now on: others share the quota."""
    global _most_cores
    _most_cores = count


_most_cores = 2**30


def resident_bytes() -> int:
    """Return this process's resident memory in bytes, 0 where the system does not tell."""
    words = _read_words(Path("/proc/self/statm"))
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else 0


def _machine_memory() -> tuple[int, int]:
    values: dict[str, int] = {}
    try:
        for line in _MEMINFO.read_text().splitlines():
            name, _, rest = line.partition(":")
            values[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        values = {}
    if "MemTotal" in values:
        return values["MemTotal"], values.get("MemAvailable", values["MemTotal"])
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total, total


def _cgroup_limits() -> list[tuple[int, int]]:
    """Return (limit, used without reclaimable file cache) in bytes of each cgroup memory limit in force."""
    found = []
    for folder in _cgroup_folders():
        for names in _MEMORY_FILES:
            limit, used = _read_words(folder / names.limit), _read_words(folder / names.used)
            if limit and limit[0].isdigit():
                cache = _stat_value(folder / names.statistics, names.file_cache)
                found.append((int(limit[0]), max(0, (int(used[0]) if used else 0) - cache)))
    return found


def _cgroup_folders() -> list[Path]:
    """Return this process's cgroup and its ancestors (any of them may set a limit), version 2 and version 1."""
    folders = [_CGROUP, _CGROUP / "memory", _CGROUP / "cpu"]
    for entry in _read_words(_PROCESS_CGROUPS):
        _, controllers, path = entry.split(":", 2)
        root = _CGROUP / controllers if controllers else _CGROUP
        node = root / path.lstrip("/")
        while node != root and root in node.parents:
            folders.append(node)
            node = node.parent
    return folders


def _stat_value(path: Path, key: str) -> int:
    words = _read_words(path)
    return int(words[words.index(key) + 1]) if key in words else 0


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
