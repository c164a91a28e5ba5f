"""The masks of a step: filled in a thread while the model computes, and waited for only so long.

One that takes longer holds nobody up: its thread is left to it, at a low priority, and another goes on behind it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from octavo.structured.backend import Bitmask
from octavo.structured.grammar_place import GrammarPlace
from octavo.utils.processes import lower_thread_priority

_PATIENCE_S = 0.005  # with one mask; most take a fiftieth of it
_SHORT_S = 0.0005
_MAX_VAIN_WAITS = 2  # of one step


@dataclass(slots=True, eq=False)
class MaskJob:
    """One request's share. rows: for each of its drafts, and for what follows; whole once it is done

    made: its one row, if that was made beside the steps
    afterwards: set once the step goes on without it: gets the first row
    """

    place: GrammarPlace
    drafts: Sequence[int]
    rows: Bitmask
    made: Future[Bitmask] | None
    is_done: bool = False
    afterwards: Future[Bitmask] | None = None

    @property
    def is_in_time(self) -> bool:
        return self.is_done and self.afterwards is None


class StepMasks:
    """One step's jobs at a time. fill: fills the rows of a job, of one that is late no more than the first."""

    def __init__(self, fill: Callable[[MaskJob], None]) -> None:
        self._fill = fill
        self._thread = ThreadPoolExecutor(1, "octavo-mask")
        self._jobs: Sequence[MaskJob] = ()
        self._is_over = threading.Event()
        self._lock = threading.Lock()  # of what follows, and of whether a job is done or late
        self._index = 0  # of the job under way
        self._begun = 0.0
        self._thread_id: int | None = None

    def start(self, jobs: Sequence[MaskJob]) -> None:
        """Begin to fill. `finish` comes before the next step's."""
        self._jobs = jobs
        self._is_over = threading.Event()
        self._run_from(0)

    def finish(self) -> None:
        """Wait until all jobs are done, or have taken too long: they tell."""
        for num_vain in range(_MAX_VAIN_WAITS):
            if num_vain:
                self._run_from(self._index + 1)
            if self._are_in_time() or self._index + 1 == len(self._jobs):
                return

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run_from(self, index: int) -> None:
        self._index, self._begun, self._thread_id = index, time.monotonic(), None
        self._thread.submit(self._run, self._jobs, index, self._is_over)

    def _run(self, jobs: Sequence[MaskJob], first: int, is_over: threading.Event) -> None:
        thread_id = threading.get_native_id()
        for index in range(first, len(jobs)):
            job = jobs[index]
            with self._lock:
                if job.afterwards is None:  # not if it began so late that others went on
                    self._index, self._begun, self._thread_id = index, time.monotonic(), thread_id
            self._fill(job)
            with self._lock:
                job.is_done = True
            if job.afterwards is not None:  # another thread does what follows
                job.afterwards.set_result(job.rows[:1])
                return
        is_over.set()

    def _are_in_time(self) -> bool:
        """Wait for the jobs under way and behind it; False as soon as one takes too long, which is left to itself."""
        while not self._is_over.wait(max(self._begun + _PATIENCE_S - time.monotonic(), _SHORT_S)):
            with self._lock:
                job = self._jobs[self._index]
                if job.is_done or time.monotonic() < self._begun + _PATIENCE_S:
                    continue
                job.afterwards = Future()
            if self._thread_id is not None:
                lower_thread_priority(self._thread_id)
            self._thread.shutdown(wait=False)  # ends with the job that it has
            self._thread = ThreadPoolExecutor(1, "octavo-mask")
            return False
        return True
