"""Memory and core facts follow cgroup limits."""

import os

import pytest

from octavo.platforms import cpu


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu, "_CGROUP", tmp_path)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8000 kB\nMemAvailable: 6000 kB\n")
    monkeypatch.setattr(cpu, "_MEMINFO", meminfo)
    monkeypatch.setattr(cpu, "_PROCESS_CGROUPS", tmp_path / "cgroup")
    (tmp_path / "cgroup").write_text("0::/slice/service\n")
    return tmp_path


def test_without_a_limit_the_machine_counts(cgroup):
    (cgroup / "memory.max").write_text("max\n")
    assert cpu.memory_facts() == cpu.MemoryFacts(8000 * 1024, 6000 * 1024)


def test_a_cgroup_limit_narrows_total_and_available_and_file_cache_is_not_used_memory(cgroup):
    (cgroup / "memory.max").write_text("4096000\n")
    (cgroup / "memory.current").write_text("1096000\n")
    (cgroup / "memory.stat").write_text("anon 96000\ninactive_file 1000000\n")
    assert cpu.memory_facts() == cpu.MemoryFacts(4096000, 4096000 - 96000)


def test_a_version_1_limit_counts_too(cgroup):
    (cgroup / "memory").mkdir()
    (cgroup / "memory/memory.limit_in_bytes").write_text("2048000\n")
    (cgroup / "memory/memory.usage_in_bytes").write_text("48000\n")
    assert cpu.memory_facts() == cpu.MemoryFacts(2048000, 2000000)


@pytest.mark.parametrize(("quota", "cores"), [("100000 100000", 1), ("150000 100000", 2), ("max 100000", None)])
def test_a_cpu_quota_bounds_the_cores(cgroup, quota, cores):
    (cgroup / "cpu.max").write_text(quota)
    affinity = len(os.sched_getaffinity(0))
    assert cpu.usable_cores() == (affinity if cores is None else min(cores, affinity))


def test_the_limit_of_an_ancestor_group_counts(cgroup):
    (cgroup / "slice/service").mkdir(parents=True)
    (cgroup / "slice/service/memory.max").write_text("max\n")
    (cgroup / "slice/memory.max").write_text("1000000\n")
    (cgroup / "slice/memory.current").write_text("400000\n")
    assert cpu.memory_facts() == cpu.MemoryFacts(1000000, 600000)
