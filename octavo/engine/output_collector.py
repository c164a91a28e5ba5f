"""What lies between the engine and one consumer of a stream: at most one output, merged while the consumer is slow."""

from __future__ import annotations

import asyncio
import dataclasses

from octavo.types.outputs import CompletionOutput, RequestOutput
from octavo.types.sampling_params import RequestOutputKind


class RequestOutputCollector:
    """Holds what one consumer has not read yet. Memory is bounded by the request itself, however slow the consumer.

    internal_ids: the sequences that feed it, for aborting exactly these
    """

    def __init__(self, output_kind: RequestOutputKind) -> None:
        self.internal_ids: list[str] = []
        self._is_delta = output_kind is RequestOutputKind.DELTA
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._ready = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        """Take an output; it is merged into an unread one."""
        self._output = output if self._output is None else merge_outputs(self._output, output, self._is_delta)
        self._ready.set()

    def fail(self, error: Exception) -> None:
        """End the stream with an error, after what is unread."""
        self._error = error
        self._ready.set()

    def get_nowait(self) -> RequestOutput | None:
        """Return what is unread, or None. Raises the error that ended the stream, once nothing is unread."""
        output, self._output = self._output, None
        if output is None and self._error is not None:
            raise self._error
        if self._error is None:
            self._ready.clear()
        return output

    async def get(self) -> RequestOutput:
        """Wait for the next output; see `get_nowait`."""
        while (output := self.get_nowait()) is None:
            await self._ready.wait()
        return output


def merge_outputs(earlier: RequestOutput, later: RequestOutput, is_delta: bool) -> RequestOutput:
    """Return one output that says what both say; `earlier` is used up.

    is_delta: outputs hold what is new, so completions of one index are joined; otherwise the later one counts
    """
    completions = {completion.index: completion for completion in earlier.outputs}
    for completion in later.outputs:
        before = completions.get(completion.index)
        joined = completion if before is None or not is_delta else _join(before, completion)
        completions[completion.index] = joined
    prompt_logprobs = later.prompt_logprobs if later.prompt_logprobs is not None else earlier.prompt_logprobs
    ordered = [completions[index] for index in sorted(completions)]
    return dataclasses.replace(later, outputs=ordered, prompt_logprobs=prompt_logprobs)


def _join(before: CompletionOutput, after: CompletionOutput) -> CompletionOutput:
    token_ids = before.token_ids
    assert isinstance(token_ids, list), "a delta's token ids are a list of its own"
    token_ids.extend(after.token_ids)
    logprobs = before.logprobs
    if logprobs is not None and after.logprobs is not None:
        logprobs.extend(after.logprobs)
    return dataclasses.replace(after, text=before.text + after.text, token_ids=token_ids, logprobs=logprobs)
