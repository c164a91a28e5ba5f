"""The masks of a step: in time, late, later than others, and by which threads."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

from octavo.structured import step_masks
from octavo.structured.step_masks import MaskJob, StepMasks

NO_DRAFTS: tuple[int, ...] = ()


class Filler:
    """Marks rows by the number of the job's place; those of `held` when they are released."""

    def __init__(self) -> None:
        self.held: dict[int, threading.Event] = {}
        self.threads: dict[int, int] = {}

    def fill(self, job: MaskJob) -> None:
        number: int = job.place  # type: ignore[assignment]
        self.threads[number] = threading.get_native_id()
        if number in self.held:
            assert self.held[number].wait(30)
        job.rows[:] = number

    def hold(self, *numbers: int) -> None:
        self.held = {number: threading.Event() for number in numbers}


@pytest.fixture
def filler() -> Iterator[Filler]:
    filler = Filler()
    yield filler
    for event in filler.held.values():
        event.set()


def jobs(*numbers: int) -> list[MaskJob]:
    return [MaskJob(number, NO_DRAFTS, np.zeros((2, 1), np.int32), None) for number in numbers]  # type: ignore[arg-type]


def test_masks_that_are_quick_are_all_there(filler: Filler):
    masks = StepMasks(filler.fill)
    for _ in range(200):
        step = jobs(1, 2, 3)
        masks.start(step)
        masks.finish()
        assert all(job.is_in_time for job in step) and [int(job.rows[1, 0]) for job in step] == [1, 2, 3]
    assert len(set(filler.threads.values())) == 1
    masks.close()


def test_a_step_passes_one_that_is_late_and_the_next_steps_are_not_held_up(filler: Filler):
    masks = StepMasks(filler.fill)
    filler.hold(2)
    first, second = jobs(1, 2, 3), jobs(4, 5)
    for step in (first, second):
        masks.start(step)
        masks.finish()
    assert [job.is_in_time for job in (*first, *second)] == [True, False, True, True, True]
    assert first[1].afterwards is not None and not first[1].afterwards.done()
    filler.held[2].set()
    assert first[1].afterwards.result(30).tolist() == [[2]], "one row: guesses behind it are given up"
    assert not first[1].is_in_time
    masks.close()


def test_the_second_late_one_ends_the_waiting(filler: Filler):
    masks = StepMasks(filler.fill)
    filler.hold(2, 4)
    step = jobs(1, 2, 3, 4, 5)
    masks.start(step)
    masks.finish()
    assert [job.is_in_time for job in step] == [True, False, True, False, False]
    assert step[4].afterwards is None and not step[4].is_done, "nobody has begun it"
    for number in (4, 2):
        filler.held[number].set()
    late = [job.afterwards for job in step if job.afterwards is not None]
    assert len(late) == 2 and not wait(late, 30).not_done and 5 not in filler.threads
    again = jobs(5)
    masks.start(again)
    masks.finish()
    assert again[0].is_in_time
    masks.close()


def test_the_last_one_may_be_late(filler: Filler):
    masks = StepMasks(filler.fill)
    filler.hold(1)
    step = jobs(1)
    masks.start(step)
    masks.finish()
    assert not step[0].is_in_time
    filler.held[1].set()
    assert step[0].afterwards is not None and step[0].afterwards.result(30).tolist() == [[1]]
    masks.close()


def test_threads_that_begin_late_disturb_nobody(filler: Filler, monkeypatch):
    may_begin = threading.Event()

    class Busy(ThreadPoolExecutor):
        """What goes on behind a late job begins when the machine has time."""

        def submit(self, work: Any, jobs: Any, first: int, is_over: Any) -> Future[None]:  # type: ignore[override]
            return super().submit(lambda: (first == 0 or may_begin.wait(30)) and work(jobs, first, is_over))

    monkeypatch.setattr(step_masks, "ThreadPoolExecutor", Busy)
    masks = StepMasks(filler.fill)
    filler.hold(1, 3)
    first, second = jobs(1, 2), jobs(3)
    masks.start(first)
    masks.finish()
    assert not any(job.is_in_time for job in first) and first[1].afterwards is not None
    masks.start(second)
    while 3 not in filler.threads:
        time.sleep(0.001)
    may_begin.set()
    assert first[1].afterwards.result(30).tolist() == [[2]]
    may_begin.clear()
    masks.finish()
    assert not second[0].is_in_time
    filler.held[3].set()
    assert second[0].afterwards is not None and second[0].afterwards.result(30).tolist() == [[3]]
    may_begin.set()
    masks.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no priorities of threads")
def test_the_thread_that_is_left_behind_gives_way_to_others(filler: Filler):
    masks = StepMasks(filler.fill)
    filler.hold(1)
    masks.start(jobs(1, 2))
    masks.finish()
    late, in_time = (os.getpriority(os.PRIO_PROCESS, filler.threads[number]) for number in (1, 2))
    assert late > in_time
    masks.close()
