"""Collectives over shared memory: results, odd sizes, order of sums, and ranks that die, hang or give up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.distributed.connect import connect
from octavo.distributed.group import Group, SoloGroup
from octavo.distributed.place import WorkerPlace, share
from octavo.distributed.rendezvous import Rendezvous
from octavo.errors import ConfigError, PeerLostError
from octavo.ops.select import native_facts

pytestmark = pytest.mark.skipif(native_facts() is None, reason="needs the native extension")


@pytest.fixture
def meeting() -> Iterator[Rendezvous]:
    rendezvous = Rendezvous()
    yield rendezvous
    rendezvous.remove()


def on_ranks(meeting: Rendezvous, size: int, work: Callable[[Group], Any], timeout_s: float = 10.0, pp: bool = False):
    """Call work with each rank's group, every rank in a thread of its own; return what they return."""

    def run(rank: int) -> Any:
        sizes = {"pp_size": size} if pp else {"tp_size": size}
        groups = connect(WorkerPlace(rank=rank, address=meeting.address, timeout_s=timeout_s, **sizes))
        try:
            return work(groups.pipeline if pp else groups.tensor)
        finally:
            groups.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def values(rank: int, count: int) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32) * 10.0 ** (rank % 3)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 7, 1000, 600_001])
def test_all_reduce_adds_in_the_order_of_ranks(meeting: Rendezvous, size: int, count: int) -> None:
    def work(group: Group) -> np.ndarray:
        array = values(group.rank, count)
        group.all_reduce(array)
        return array

    expected = values(0, count)
    for rank in range(1, size):
        expected = expected + values(rank, count)
    for result in on_ranks(meeting, size, work):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("widths", [[3, 4], [1, 4, 5], [40_000, 300_000]])
def test_all_gather_joins_uneven_columns(meeting: Rendezvous, widths: list[int]) -> None:
    num_rows = 11

    def part(rank: int) -> np.ndarray:
        return values(rank, num_rows * widths[rank]).reshape(num_rows, widths[rank])

    expected = np.concatenate([part(rank) for rank in range(len(widths))], axis=1)
    for result in on_ranks(meeting, len(widths), lambda group: group.all_gather(part(group.rank), widths)):
        np.testing.assert_array_equal(result, expected)


def test_broadcast_and_barriers_in_any_mix(meeting: Rendezvous) -> None:
    def work(group: Group) -> list[float]:
        seen = []
        for root in (0, 2, 1, 1):
            array = np.full(300_000, group.rank if group.rank == root else -1, np.float32)
            group.broadcast(array, root)
            group.barrier()
            seen += [float(array.min()), float(array.max())]
        return seen

    assert on_ranks(meeting, 3, work) == [[0, 0, 2, 2, 1, 1, 1, 1]] * 3


def test_neighbours_pass_arrays_on_in_order_also_larger_ones_than_their_memory(meeting: Rendezvous) -> None:
    sizes = [5, 3_000_000, 1, 700_000]

    def work(group: Group) -> bool:
        good = True
        for number, size in enumerate(sizes):
            array = values(number, size) if group.rank == 0 else np.empty(size, np.float32)
            if group.rank > 0:
                group.receive(array)
                good = good and np.array_equal(array, values(number, size))
            if group.rank < 2:
                group.send(array)
        return good

    assert on_ranks(meeting, 3, work, pp=True) == [True] * 3


def test_a_sender_goes_on_while_the_next_rank_is_busy(meeting: Rendezvous) -> None:
    order: list[str] = []

    def work(group: Group) -> None:
        if group.rank == 0:
            for _ in range(3):
                group.send(np.zeros(1000, np.float32))
            order.append("sent")
            group.barrier()
        else:
            group.barrier()
            for _ in range(3):
                group.receive(np.empty(1000, np.float32))
            order.append("received")

    on_ranks(meeting, 2, work, pp=True)
    assert order == ["sent", "received"]


def test_a_rank_that_hangs_is_named_when_time_is_up(meeting: Rendezvous) -> None:
    def work(group: Group) -> str:
        if group.rank == 1:
            time.sleep(1.0)
            return ""
        with pytest.raises(PeerLostError) as raised:
            group.barrier()
        return str(raised.value)

    message, *_ = on_ranks(meeting, 2, work, timeout_s=0.2)
    assert "rank 1 of 2 in the group tp0 did not come in time" in message


@pytest.mark.parametrize("way", ["close", "abort"])
def test_a_rank_that_leaves_or_gives_up_is_told_to_the_others(meeting: Rendezvous, way: str) -> None:
    def work(group: Group) -> str:
        if group.rank == 1:
            group.barrier()
            getattr(group, way)()
            return ""
        group.barrier()
        with pytest.raises(PeerLostError) as raised:
            group.barrier()
        return str(raised.value)

    message, _ = on_ranks(meeting, 2, work)
    assert ("rank 1" if way == "close" else "gave up") in message


def test_a_meeting_place_may_go_once_all_have_met(meeting: Rendezvous) -> None:
    directory = Path(meeting.address.removeprefix("shm:"))

    def work(group: Group) -> None:
        group.barrier()
        if group.rank == 0:
            meeting.remove()
        group.barrier()

    on_ranks(meeting, 2, work)
    assert not directory.exists()


_CHILD = """
import sys
import numpy as np
from octavo.distributed.connect import connect
from octavo.distributed.place import WorkerPlace
group = connect(WorkerPlace(rank=1, tp_size=2, address=sys.argv[1], timeout_s=20)).tensor
while True:
    group.all_reduce(np.zeros(1000, np.float32))
"""


def test_a_killed_process_is_noticed_at_once(meeting: Rendezvous) -> None:
    child = subprocess.Popen([sys.executable, "-c", _CHILD, meeting.address], cwd=Path(__file__).parents[2])
    try:
        group = connect(WorkerPlace(rank=0, tp_size=2, address=meeting.address, timeout_s=60)).tensor
        for _ in range(100):
            group.all_reduce(np.zeros(1000, np.float32))
        os.kill(child.pid, signal.SIGKILL)  # not waited for: a zombie, as it is to an executor that has not looked yet
        begin = time.monotonic()
        with pytest.raises(PeerLostError, match="rank 1 of 2 in the group tp0 has ended"):
            while True:
                group.all_reduce(np.zeros(1000, np.float32))
        assert time.monotonic() - begin < 2  # the bound; it takes 20 ms
        group.close()
    finally:
        child.kill()
        child.wait()


def test_arrays_that_cannot_be_shared_are_refused(meeting: Rendezvous) -> None:
    def work(group: Group) -> None:
        with pytest.raises(ValueError, match="contiguous float32"):
            group.all_reduce(np.zeros((4, 4), np.float32)[:, :2])
        with pytest.raises(ValueError, match="widths must be one for each of 2 ranks"):
            group.all_gather(np.zeros((1, 2), np.float32), [2])
        group.barrier()

    on_ranks(meeting, 2, work)


def test_an_address_that_nobody_made_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot share memory"):
        connect(WorkerPlace(rank=0, tp_size=2, address="shm:/nowhere/at/all", timeout_s=1))


def test_a_group_that_does_not_come_together_leaves_nothing(meeting: Rendezvous) -> None:
    num_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(PeerLostError, match="did not come in time"):
        connect(WorkerPlace(rank=0, tp_size=2, address=meeting.address, timeout_s=0.05))
    assert len(os.listdir("/proc/self/fd")) == num_files
    assert meeting.address.removeprefix("shm:") not in Path("/proc/self/maps").read_text()


def test_places_say_who_is_where() -> None:
    places = [WorkerPlace(rank=rank, tp_size=2, pp_size=3) for rank in range(6)]
    assert [(place.pp_rank, place.tp_rank) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [place.gives_output for place in places] == [False] * 4 + [True, False]
    assert WorkerPlace().gives_output and WorkerPlace().world_size == 1


@pytest.mark.parametrize(("total", "size"), [(10, 3), (2, 3), (7, 7), (0, 2)])
def test_shares_follow_each_other_and_differ_by_at_most_one(total: int, size: int) -> None:
    shares = [share(total, size, rank) for rank in range(size)]
    assert [item for own in shares for item in own] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_rank_alone_needs_nobody() -> None:
    group = SoloGroup()
    array = np.arange(3, dtype=np.float32)
    group.all_reduce(array)
    group.barrier()
    assert array.tolist() == [0, 1, 2] and group.all_gather(array[None], [3]).tolist() == [[0, 1, 2]]


def test_neighbours_of_a_stage_share_contexts(meeting: Rendezvous) -> None:
    place = WorkerPlace(tp_size=4, pp_size=2, dcp_size=2, address=meeting.address, timeout_s=10.0)

    def run(rank: int) -> list[float]:
        groups = connect(replace(place, rank=rank))
        ranks = groups.context.all_gather(np.full((1, 1), rank, np.float32), [1, 1])
        groups.close()
        return ranks[0].tolist()

    with ThreadPoolExecutor(place.world_size) as pool:
        assert list(pool.map(run, range(8))) == [[rank - rank % 2, rank - rank % 2 + 1] for rank in range(8)]
