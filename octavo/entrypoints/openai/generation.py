"""Running prompts on the engine for an endpoint: all at once, as one stream or to their ends.

Knows prompts, parameters and outputs; never the shape of a request or a response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.entrypoints.openai.engine_headers import data_parallel_rank, trace_headers
from octavo.errors import InvalidRequestError, RequestFailedError
from octavo.types.adapters import LoRARequest
from octavo.types.outputs import PromptLogprobs, RequestOutput
from octavo.types.prompts import TokensPrompt
from octavo.types.request import OWN_FAULTS
from octavo.types.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM


@dataclass(frozen=True)
class Job:
    """Prompts that run with the same parameters; checked, so that running them fails only if the engine does.

    request_id: unique among live requests; prompt i runs as request_id-i
    """

    request_id: str
    prompts: Sequence[TokensPrompt]
    params: SamplingParams
    priority: int = 0
    lora_request: LoRARequest | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt["prompt_token_ids"]) for prompt in self.prompts)


@dataclass(frozen=True)
class PromptOutput:
    """An output and the index of its prompt in the job."""

    prompt_index: int
    output: RequestOutput


def check_job(
    engine: AsyncLLM,
    request_id: str,
    prompts: Sequence[object],
    params: SamplingParams,
    priority: int | None,
    tokenization_kwargs: dict[str, object],
    lora_request: LoRARequest | None = None,
) -> Job:
    """Tokenise and check all prompts before any runs. Takes time: not for the event loop.

    Raises InvalidRequestError or UnsupportedError.
    """
    checked: list[TokensPrompt] = []
    for index, prompt in enumerate(prompts):
        try:
            processed = engine.input_processor.process(
                request_id, prompt, params, priority=priority or 0, tokenization_kwargs=tokenization_kwargs
            )
        except InvalidRequestError as error:
            if len(prompts) == 1:
                raise
            raise InvalidRequestError(f"prompt {index} of {len(prompts)}: {error}", error.parameter) from None
        tokens_prompt = TokensPrompt(prompt_token_ids=processed.request.prompt_token_ids)
        if processed.prompt is not None:
            tokens_prompt["prompt"] = processed.prompt
        if processed.request.cache_salt is not None:
            tokens_prompt["cache_salt"] = processed.request.cache_salt
        checked.append(tokens_prompt)
    return Job(request_id, checked, params, priority or 0, lora_request)


async def stream(engine: AsyncLLM, job: Job) -> AsyncGenerator[PromptOutput, None]:
    """Yield the outputs of all prompts as they come; closing the generator aborts what still runs.

    Raises RequestFailedError when the engine gave a sequence up, InvalidRequestError when that was the request's doing.
    """
    generators = [_outputs(engine, job, index) for index in range(len(job.prompts))]
    merged = generators[0] if len(generators) == 1 else _merged(generators)
    async with aclosing(merged) as outputs:
        async for prompt_output in outputs:
            yield prompt_output


async def run_to_end(engine: AsyncLLM, job: Job) -> list[RequestOutput]:
    """Return the final output of every prompt, in order; being cancelled aborts what still runs."""
    finals: dict[int, RequestOutput] = {}
    async with aclosing(stream(engine, job)) as outputs:
        async for prompt_output in outputs:
            finals[prompt_output.prompt_index] = prompt_output.output
    return [finals[index] for index in range(len(job.prompts))]


async def _outputs(engine: AsyncLLM, job: Job, index: int) -> AsyncGenerator[PromptOutput, None]:
    outputs = engine.generate(
        job.prompts[index],
        job.params,
        f"{job.request_id}-{index}",
        lora_request=job.lora_request,
        trace_headers=trace_headers(),
        priority=job.priority,
        data_parallel_rank=data_parallel_rank(),
    )
    async with aclosing(outputs):
        async for output in outputs:
            for completion in output.outputs:
                if completion.finish_reason == "error":
                    raise _failure(str(completion.stop_reason))
            yield PromptOutput(index, output)


def _failure(reason: str) -> InvalidRequestError | RequestFailedError:
    """Return the error of a request that was given up: its author's, if its own parameters left nothing to generate."""
    if reason.startswith(OWN_FAULTS):
        return InvalidRequestError(f"the request had to be given up: {reason}")
    return RequestFailedError(f"the engine gave the request up: {reason}")


async def _merged(generators: Sequence[AsyncGenerator[PromptOutput, None]]) -> AsyncGenerator[PromptOutput, None]:
    """Yield from all generators as their items come. A slow reader slows them: at most one item of each waits."""
    queue: asyncio.Queue[PromptOutput | BaseException | None] = asyncio.Queue(maxsize=len(generators))

    async def pump(generator: AsyncGenerator[PromptOutput, None]) -> None:
        try:
            async with aclosing(generator):
                async for item in generator:
                    await queue.put(item)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    pumps = [asyncio.create_task(pump(generator)) for generator in generators]
    num_running = len(pumps)
    try:
        while num_running:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def with_prompt_logprobs(outputs: AsyncIterator[PromptOutput]) -> AsyncGenerator[PromptOutput, None]:
    """Give every output its prompt's logprobs. One of the `n` sequences brings them, once; the others wait for it.

    What ends before (a request that is aborted) comes at the end, without.
    """
    known: dict[int, PromptLogprobs] = {}
    waiting: dict[int, list[PromptOutput]] = {}
    async for item in outputs:
        index = item.prompt_index
        if item.output.prompt_logprobs is not None:
            known[index] = item.output.prompt_logprobs
        waiting.setdefault(index, []).append(item)
        if index in known:
            for ready in waiting.pop(index):
                yield replace(ready, output=replace(ready.output, prompt_logprobs=known[index]))
    for held in waiting.values():
        for item in held:
            yield item
