"""Every process gets cores of its own: whole physical ones, of one memory node where that is possible."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from octavo.platforms import core_shares, cpu
from octavo.platforms.core_shares import take_share


class Machine:
    """Stands in for the system: two memory nodes of two physical cores, each of two logical ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.allowed = set(range(8))
        for node, cores in ((0, "0-1,4-5"), (1, "2-3,6-7")):
            (folder / f"node{node}").mkdir()
            (folder / f"node{node}/cpulist").write_text(cores + "\n")
        for core in range(8):
            (folder / f"cpu{core}/topology").mkdir(parents=True)
            siblings = f"{core % 4},{core % 4 + 4}\n"
            (folder / f"cpu{core}/topology/thread_siblings_list").write_text(siblings)
        monkeypatch.setattr(core_shares, "_NODES", folder)
        monkeypatch.setattr(core_shares, "_CPUS", folder)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(self.allowed))
        monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: setattr(self, "allowed", set(cores)))
        monkeypatch.setattr(cpu, "_cgroup_folders", list)
        monkeypatch.setattr(cpu, "_most_cores", 2**30)
        monkeypatch.delenv("OCTAVO_NUM_THREADS", raising=False)


@pytest.mark.parametrize(
    "count, expected",
    [
        (1, [set(range(8))]),
        (2, [{0, 1, 4, 5}, {2, 3, 6, 7}]),
        (3, [{0, 4}, {1, 5}, {2, 3, 6, 7}]),
        (4, [{0, 4}, {1, 5}, {2, 6}, {3, 7}]),
        (8, [{0}, {4}, {1}, {5}, {2}, {6}, {3}, {7}]),
    ],
)
def test_shares_are_neighbours_and_have_nothing_in_common(monkeypatch, tmp_path, count, expected):
    machine = Machine(monkeypatch, tmp_path)
    shares = []
    for index in range(count):
        machine.allowed = set(range(8))
        monkeypatch.setattr(cpu, "_most_cores", 2**30)
        take_share(index, count)
        shares.append(machine.allowed)
        assert cpu.usable_cores() == 8 // count
    assert shares == expected


def test_a_quota_below_the_number_of_cores_is_divided(monkeypatch, tmp_path):
    machine = Machine(monkeypatch, tmp_path)
    take_share(0, 2, max_cores=4)
    assert (machine.allowed, cpu.usable_cores()) == ({0, 1, 4, 5}, 2)


def test_more_processes_than_cores_stay_where_they_are_with_a_warning(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(logging.getLogger("octavo"), "propagate", True)
    machine = Machine(monkeypatch, tmp_path)
    take_share(1, 9)
    assert not caplog.text  # the first one says it
    take_share(0, 9)
    assert "9 processes of 1 threads compute on 1 cores" in caplog.text
    assert machine.allowed == set(range(8))
    assert cpu.usable_cores() == 1


def test_a_number_of_threads_that_somebody_gave_leaves_the_cores_to_the_system(monkeypatch, tmp_path):
    machine = Machine(monkeypatch, tmp_path)
    monkeypatch.setenv("OCTAVO_NUM_THREADS", "3")
    take_share(0, 2)
    assert machine.allowed == set(range(8))
