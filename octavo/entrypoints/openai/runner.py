"""The way of every job to the engine: admission, the log, and what the engine makes of it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

from octavo.entrypoints.openai import generation
from octavo.entrypoints.openai.admission import Admission
from octavo.entrypoints.openai.beams import run_beams
from octavo.entrypoints.openai.generation import Job, PromptOutput
from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.log import get_logger
from octavo.types.outputs import RequestOutput
from octavo.types.sampling_params import BeamSearchParams

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM

logger = get_logger("octavo.requests")


class JobRunner:
    """Runs checked jobs. Raises HTTPError 503 when too much waits, RequestFailedError and EngineDeadError."""

    def __init__(self, engine: AsyncLLM, args: ServerArgs) -> None:
        self._engine = engine
        self._args = args
        self.admission = Admission(
            engine.config.max_running_sequences, args.max_num_queued_reqs or None, args.max_num_queued_tokens or None
        )

    async def run_to_end(self, job: Job) -> list[RequestOutput]:
        """Return the final output of every prompt, in order."""
        with self._entered(job, job.params.n) as log:
            outputs = await generation.run_to_end(self._engine, job)
            log.take(outputs)
            return outputs

    async def run_beams(self, job: Job, params: BeamSearchParams, num_logprobs: int | None) -> list[RequestOutput]:
        """Search for every prompt; see `beams.run_beams`."""
        with self._entered(job, params.beam_width) as log:
            outputs = await run_beams(self._engine, job, params, num_logprobs)
            log.take(outputs)
            return outputs

    async def stream(self, job: Job) -> AsyncGenerator[PromptOutput, None]:
        """Yield the outputs of all prompts as they come; closing the generator aborts what still runs."""
        with self._entered(job, job.params.n) as log:
            async with aclosing(generation.stream(self._engine, job)) as outputs:
                async for prompt_output in outputs:
                    log.take([prompt_output.output])
                    yield prompt_output

    @contextmanager
    def _entered(self, job: Job, num_choices: int) -> Iterator[_JobLog]:
        with self.admission.enter(len(job.prompts) * num_choices, job.num_prompt_tokens):
            log = _JobLog(self._args, job)
            try:
                yield log
            finally:
                log.close()


class _JobLog:
    """The log lines of one job: one at its begin, one at its end. Prompts and outputs only as far as asked for."""

    def __init__(self, args: ServerArgs, job: Job) -> None:
        self._args = args
        self._job = job
        self._started_s = time.monotonic()
        self._num_tokens = 0
        self._texts: dict[int, str] = {}
        self._reasons: set[str] = set()
        if args.enable_log_requests:
            texts = [prompt.get("prompt") or str(prompt["prompt_token_ids"]) for prompt in job.prompts]
            logger.info(
                "%s: %d prompts of %d tokens together, %s; %s",
                job.request_id,
                len(job.prompts),
                job.num_prompt_tokens,
                job.params,
                [self._cut(text) for text in texts],
            )

    def take(self, outputs: Sequence[RequestOutput]) -> None:
        """Note outputs, whole or deltas."""
        if not self._args.enable_log_requests:
            return
        for output in outputs:
            for completion in output.outputs:
                self._num_tokens += len(completion.token_ids)
                if completion.finish_reason is not None:
                    self._reasons.add(completion.finish_reason)
                if self._args.enable_log_outputs:
                    self._texts[completion.index] = self._texts.get(completion.index, "") + completion.text

    def close(self) -> None:
        """Write the last line."""
        if not self._args.enable_log_requests:
            return
        texts = f"; {[self._cut(text) for text in self._texts.values()]}" if self._args.enable_log_outputs else ""
        reasons = ", ".join(sorted(self._reasons)) or "left"
        seconds = time.monotonic() - self._started_s
        logger.info("%s: %d tokens in %.2f s, %s%s", self._job.request_id, self._num_tokens, seconds, reasons, texts)

    def _cut(self, text: str) -> str:
        limit = self._args.max_log_len
        return text if limit is None or len(text) <= limit else text[:limit] + "…"
