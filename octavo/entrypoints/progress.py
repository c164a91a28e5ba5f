"""The progress bar of a blocking call: finished requests, and tokens per second in and out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from octavo.types.outputs import RequestOutput

UseTqdm = bool | Callable[..., Any]


class Progress:
    """A bar over `num_requests`; use_tqdm False shows none, a callable is used in place of tqdm."""

    def __init__(self, num_requests: int, use_tqdm: UseTqdm) -> None:
        self._num_input_tokens = 0
        self._num_output_tokens = 0
        self._started = time.monotonic()
        self._bar = _make_bar(num_requests, use_tqdm)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def finished(self, output: RequestOutput) -> None:
        """Count a finished request."""
        num_output_tokens = sum(len(completion.token_ids) for completion in output.outputs)
        self.advance(len(output.prompt_token_ids or ()), num_output_tokens)

    def advance(self, num_input_tokens: int, num_output_tokens: int) -> None:
        """Move the bar by one, and count tokens."""
        if self._bar is None:
            return
        self._num_input_tokens += num_input_tokens
        self._num_output_tokens += num_output_tokens
        seconds = max(time.monotonic() - self._started, 1e-9)
        self._bar.postfix = (
            f"input: {self._num_input_tokens / seconds:.2f} tokens/s, "
            f"output: {self._num_output_tokens / seconds:.2f} tokens/s"
        )
        self._bar.update(1)


def _make_bar(num_requests: int, use_tqdm: UseTqdm) -> Any:
    if use_tqdm is False or not num_requests or (use_tqdm is True and sys.stderr is None):  # as in a daemon
        return None
    return _bar_class(use_tqdm)(total=num_requests, desc="Processed prompts", dynamic_ncols=True)


def _bar_class(use_tqdm: UseTqdm) -> Callable[..., Any]:
    if callable(use_tqdm):
        return use_tqdm
    from tqdm import tqdm

    bar_class: Callable[..., Any] = tqdm
    return bar_class
