"""Work beside the steps: done in order by a thread that gives way to those that compute."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from octavo.utils.processes import lower_thread_priority

Result = TypeVar("Result")


class BackgroundThread:
    """Starts with the first piece of work. progress: set whenever one has been done."""

    def __init__(self, name: str, progress: threading.Event) -> None:
        self._thread = ThreadPoolExecutor(1, name, initializer=lambda: lower_thread_priority(threading.get_native_id()))
        self._progress = progress

    def submit(self, work: Callable[..., Result], *args: object) -> Future[Result]:
        """Have it done behind what was submitted before."""
        future = self._thread.submit(work, *args)
        future.add_done_callback(lambda _: self._progress.set())
        return future

    def close(self) -> None:
        """Let the thread go, with what it has not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def settled(work: Callable[[], Result]) -> Future[Result]:
    """Do it here and now; return a future that has what came of it."""
    future: Future[Result] = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future
