"""How much may wait: requests beyond what the engine runs at once are counted, and refused over a limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.entrypoints.openai.errors import RETRY_AFTER_S, HTTPError


class Admission:
    """Counts the sequences and prompt tokens in work. Lives on the event loop: no locks.

    max_queued_sequences, max_queued_tokens: None = no limit. What waits is what exceeds max_running sequences;
    prompt tokens count from admission until the request ends.
    """

    def __init__(self, max_running: int, max_queued_sequences: int | None, max_queued_tokens: int | None) -> None:
        self._max_running = max_running
        self._max_queued_sequences = max_queued_sequences
        self._max_queued_tokens = max_queued_tokens
        self.num_requests = 0
        self.num_sequences = 0
        self.num_prompt_tokens = 0
        self.rejections = {"requests": 0, "tokens": 0}

    @contextmanager
    def enter(self, num_sequences: int, num_prompt_tokens: int) -> Iterator[None]:
        """Count a request while it runs; raises HTTPError 503 if too much waits already."""
        self.check()
        self.num_requests += 1
        self.num_sequences += num_sequences
        self.num_prompt_tokens += num_prompt_tokens
        try:
            yield
        finally:
            self.num_requests -= 1
            self.num_sequences -= num_sequences
            self.num_prompt_tokens -= num_prompt_tokens

    def check(self) -> None:
        """Raise HTTPError 503 if too much waits already; also called before work is spent on a request."""
        num_waiting = max(0, self.num_sequences - self._max_running)
        if self._max_queued_sequences is not None and num_waiting >= self._max_queued_sequences:
            self._reject("requests", f"{num_waiting} sequences are waiting already (--max-num-queued-reqs)")
        if self._max_queued_tokens is not None and self.num_prompt_tokens >= self._max_queued_tokens:
            self._reject(
                "tokens", f"{self.num_prompt_tokens} prompt tokens are in work already (--max-num-queued-tokens)"
            )

    def _reject(self, reason: str, message: str) -> None:
        self.rejections[reason] += 1
        raise HTTPError(
            503, f"the server is overloaded: {message}; try again later", headers={"Retry-After": str(RETRY_AFTER_S)}
        )
