"""Workers and executors that users could write."""

from __future__ import annotations

import os
import signal
import time

from octavo.executor.uniproc import UniProcExecutor
from octavo.worker.worker import Worker


class Extension:
    """Methods for collective_rpc."""

    def repeat(self, text: str, times: int = 2) -> list[str]:
        return [text] * times

    def process_id(self) -> int:
        return os.getpid()

    def cores(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    def nap(self, seconds: float) -> None:
        time.sleep(seconds)

    def nap_by_rank(self, seconds: float) -> None:
        time.sleep(seconds * (self.rank + 1))

    def divide(self) -> None:
        1 / 0  # noqa: B018

    def fail_at_last_rank(self) -> None:
        if self.rank == self.place.world_size - 1:
            raise ValueError("too early")
        time.sleep(0.2)


class FailingStep(Worker):
    """Its third step fails."""

    failing, num_steps = 3, 0

    def execute_model(self, step):
        self.num_steps += 1
        if self.num_steps == self.failing:
            raise ValueError("the third step")
        return super().execute_model(step)


class FailingFirstStep(FailingStep):
    """The one that brings the requests fails, so that the next finds none of them."""

    failing = 1


class StopsItself(Worker):
    """The last rank stands still in its fifth step, the first time that any process of the test gets there."""

    num_steps = 0

    def execute_model(self, step):
        self.num_steps += 1
        path = os.environ["STOPPED_ONCE"]
        if self.num_steps == 5 and self.rank == self.place.world_size - 1 and not os.path.exists(path):
            with open(path, "w"):
                pass
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().execute_model(step)


class DiesAtStart(Worker):
    def load_model(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class CannotStart(Worker):
    def load_model(self) -> None:
        1 / 0  # noqa: B018


class CountingExecutor(UniProcExecutor):
    """Counts its steps."""

    num_steps = 0

    def execute_model(self, step):
        self.num_steps += 1
        return super().execute_model(step)


class NoExecutor:
    pass
