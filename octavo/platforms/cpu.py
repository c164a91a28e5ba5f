"""Memory and cores that this process may use, respecting cgroups and CPU affinity (Linux); elsewhere the machine's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


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
    """Return how many cores this process may use: affinity, then the cgroup's CPU quota rounded up; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = _read_words(_CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0] != "max":
        cores = min(cores, -(-int(quota[0]) // int(quota[1])))
    return max(1, cores)


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
    for limit_file, used_file, stat_file, cache_key in (
        (_CGROUP / "memory.max", _CGROUP / "memory.current", _CGROUP / "memory.stat", "inactive_file"),
        (
            _CGROUP / "memory/memory.limit_in_bytes",
            _CGROUP / "memory/memory.usage_in_bytes",
            _CGROUP / "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        limit = _read_words(limit_file)
        if not limit or not limit[0].isdigit():
            continue
        used = _read_words(used_file)
        cache = _stat_value(stat_file, cache_key)
        found.append((int(limit[0]), max(0, (int(used[0]) if used else 0) - cache)))
    return found


def _stat_value(path: Path, key: str) -> int:
    words = _read_words(path)
    return int(words[words.index(key) + 1]) if key in words else 0


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
