"""Workers for tests: more methods, and starts that fail."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from octavo.errors import ConfigError
from octavo.scheduler.scheduler import Scheduler
from octavo.speculative.draft_lengths import DraftLengths
from octavo.worker.worker import Worker


class Extension:
    """Methods for collective_rpc."""

    def repeat(self, text: str, times: int) -> list[str]:
        return [text] * times

    def process_id(self) -> int:
        return os.getpid()

    def nap(self, seconds: float) -> None:
        time.sleep(seconds)

    def holds_memory(self) -> list[bool]:
        """Return whether there are KV caches, and weights."""
        return [bool(self.model_runner._kv_caches), hasattr(self.model_runner, "model")]

    def unsendable(self) -> object:
        return object()


class Broken(Worker):
    def load_model(self) -> None:
        1 / 0  # noqa: B018


class ForgetfulScheduler(Worker):
    """A worker whose process has a scheduler with a fault: it fails at the second update."""

    def load_model(self) -> None:
        super().load_model()
        update, num_updates = Scheduler.update_from_output, iter(range(10**6))

        def failing(scheduler, step, output):
            if next(num_updates) == 1:
                raise KeyError("a block that nobody knows")
            return update(scheduler, step, output)

        Scheduler.update_from_output = failing


class Guessing(Worker):
    """A worker that guesses as much as it may, whatever that costs."""

    def load_model(self) -> None:
        super().load_model()
        DraftLengths.lengths = lambda self, rows: [self._max_tokens] * len(rows)
        DraftLengths.pays = lambda self, batch_size: True


class Killed(Worker):
    def load_model(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class OnlyOne(Worker):
    """Only the first process that has one can start."""

    def load_model(self) -> None:
        try:
            Path(tempfile.gettempdir(), "one").touch(exist_ok=False)
        except FileExistsError:
            raise ConfigError("there is no second one") from None
        super().load_model()
