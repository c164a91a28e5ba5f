"""LLM: the offline Python API, with vLLM's methods and meanings."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from octavo.config import EngineArgs
from octavo.engine.input_processor import ProcessedRequest
from octavo.engine.llm_engine import LLMEngine
from octavo.engine.prompts import as_prompts
from octavo.entrypoints import pooling_calls, resting
from octavo.entrypoints.beam_search import BeamSearchOutput, run_beam_search
from octavo.entrypoints.progress import Progress, UseTqdm
from octavo.errors import InvalidRequestError, RequestFailedError, UnsupportedError
from octavo.log import get_logger
from octavo.metrics.engine_metrics import Metric
from octavo.tokenizers.chat_messages import ContentFormat, Message
from octavo.tokenizers.chat_template import ChatOptions, render_chat
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.adapters import LoRARequest
from octavo.types.outputs import RequestOutput
from octavo.types.pooling import PoolingParams
from octavo.types.pooling_outputs import PoolingOutput, PoolingRequestOutput
from octavo.types.prompts import PromptType, TokensPrompt
from octavo.types.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from octavo.utils.interrupts import deferred_interrupt

logger = get_logger(__name__)

SamplingParamsInput = SamplingParams | Sequence[SamplingParams] | None
LoRAInput = LoRARequest | Sequence[LoRARequest | None] | None


class LLM:
    """A model, its tokenizer and an engine in this process.

    Calls block until their requests have finished. All requests of a call are checked before any runs. Ctrl-C ends a
    call between two steps, aborts its requests and leaves a usable engine. Threads may share an LLM: their calls run
    one after the other (AsyncLLM runs them together).
    """

    def __init__(self, model: str, *, chat_template: str | None = None, **engine_options: Any) -> None:
        """Load a model; engine_options are the fields of EngineArgs, unknown ones raise ConfigError.

        chat_template: Jinja source that `chat` uses instead of the model's own
        """
        args = EngineArgs.from_kwargs(model=model, **engine_options)
        self._attach(LLMEngine.from_engine_args(args), chat_template)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """Load a model as EngineArgs say."""
        return cls.from_engine(LLMEngine.from_engine_args(engine_args))

    @classmethod
    def from_engine(cls, llm_engine: LLMEngine, chat_template: str | None = None) -> LLM:
        """Wrap an engine that runs already."""
        llm = cls.__new__(cls)
        llm._attach(llm_engine, chat_template)
        return llm

    def _attach(self, llm_engine: LLMEngine, chat_template: str | None) -> None:
        self.llm_engine = llm_engine
        self.model_config = llm_engine.model_config
        self._chat_template = chat_template
        self._request_numbers = itertools.count()
        self._engine_lock = threading.RLock()  # held from adding requests to their end
        self._pending: dict[str, None] = {}  # ids of `enqueue` that `wait_for_completion` has not returned, in order
        self._finished: dict[str, RequestOutput] = {}  # results of pending requests that another call's steps made

    # -- generation ----------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParamsInput = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: LoRAInput = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, object] | None = None,
        mm_processor_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """Complete one or many prompts; return one result per prompt, in order.

        prompts: text, token ids, {"prompt": text}, {"prompt_token_ids": ids}, or a list of these
        sampling_params: one for all, one per prompt, or None for the model's defaults
        use_tqdm: whether to show a progress bar, or a callable used in place of tqdm
        lora_request: adapter for all, or one per prompt (None: none); needs enable_lora=True
        priority: one for all or one per prompt, lower first; needs scheduling_policy="priority"
        """
        _refuse_unbuilt(mm_processor_kwargs)
        listed = as_prompts(prompts)
        return self._add_and_run(listed, sampling_params, priority, tokenization_kwargs, lora_request, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParamsInput = None,
        use_tqdm: UseTqdm = True,
        lora_request: LoRAInput = None,
        chat_template: str | None = None,
        chat_template_content_format: Literal["auto"] | ContentFormat = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, object] | None = None,
        mm_processor_kwargs: Mapping[str, object] | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them; return one result per conversation, in order."""
        _refuse_unbuilt(mm_processor_kwargs)
        prompts = [
            self.preprocess_chat(
                conversation,
                chat_template=chat_template,
                chat_template_content_format=chat_template_content_format,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in _as_conversations(messages)
        ]
        return self._add_and_run(prompts, sampling_params, priority, tokenization_kwargs, lora_request, use_tqdm)

    def preprocess_chat(
        self,
        conversation: Sequence[Message],
        *,
        chat_template: str | None = None,
        chat_template_content_format: Literal["auto"] | ContentFormat = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> TokensPrompt:
        """Render one conversation into the prompt that `chat` would run."""
        _check_content_format(chat_template_content_format)
        tokenizer = self.get_tokenizer()
        options = ChatOptions(
            chat_template=chat_template or self._chat_template,
            content_format=chat_template_content_format,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_arguments=chat_template_kwargs or {},
        )
        text = render_chat(tokenizer, conversation, options)
        # the template writes the special tokens itself: adding the tokenizer's would give two beginnings
        return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: LoRARequest | None = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Search for the most likely sequences; return the best beam_width ones per prompt, best first.

        concurrency_limit: at most so many prompts are searched at the same time
        """
        return run_beam_search(self, as_prompts(prompts), params, lora_request, use_tqdm, concurrency_limit)

    def enqueue(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParamsInput = None,
        *,
        lora_request: LoRAInput = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, object] | None = None,
    ) -> list[str]:
        """Add requests without running them; return their ids. `wait_for_completion` runs them."""
        with self._engine_lock:
            listed = as_prompts(prompts)
            request_ids = self._add_all(listed, sampling_params, priority, tokenization_kwargs, lora_request)
            self._pending.update(dict.fromkeys(request_ids))
        return request_ids

    def wait_for_completion(self, *, use_tqdm: UseTqdm = True) -> list[RequestOutput]:
        """Run all enqueued requests; return their results in the order in which they were enqueued."""
        with self._engine_lock:
            self.llm_engine.check_awake()
            request_ids, self._pending = list(self._pending), {}
            return self._run(request_ids, use_tqdm)

    encode = pooling_calls.encode
    embed = pooling_calls.embed
    classify = pooling_calls.classify
    reward = pooling_calls.reward
    score = pooling_calls.score

    sleep = resting.sleep
    wake_up = resting.wake_up

    # -- services ------------------------------------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return self.llm_engine.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """Return new parameters with the defaults of the model's generation config."""
        return SamplingParams.from_defaults(self.model_config.default_sampling_params, {})

    def get_metrics(self) -> list[Metric]:
        """Return counters, gauges and histograms as they are now."""
        return self.llm_engine.get_metrics()

    def get_world_size(self, include_dp: bool = True) -> int:
        """Return how many workers compute, replicas included or not."""
        parallel = self.llm_engine.config.parallel
        return parallel.world_size * (parallel.data_parallel_size if include_dp else 1)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget cached prefixes; False when blocks are in use (reset_running_requests preempts their users)."""
        if reset_connector:
            raise UnsupportedError("reset_connector is not supported: KV transfer is not built")
        return self.llm_engine.reset_prefix_cache(reset_running_requests)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a worker method by name, or a function with the worker as first argument, on every worker."""
        return self.llm_engine.collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """Call a function with the model on every worker; return its results."""
        return self.llm_engine.apply_model(func)

    # -- running -------------------------------------------------------------------------------------------------------

    def _add_and_run(
        self,
        prompts: Sequence[PromptType],
        sampling_params: SamplingParamsInput,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: Mapping[str, object] | None,
        lora_request: LoRAInput,
        use_tqdm: UseTqdm,
    ) -> list[RequestOutput]:
        with self._engine_lock:
            request_ids = self._add_all(prompts, sampling_params, priority, tokenization_kwargs, lora_request)
            return self._run(request_ids, use_tqdm)

    def _add_all(
        self,
        prompts: Sequence[PromptType],
        sampling_params: SamplingParamsInput,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: Mapping[str, object] | None,
        lora_request: LoRAInput,
    ) -> list[str]:
        """Check every request, then add them all; return their ids. A bad one raises before anything is added."""
        every_params = self._params_per_prompt(sampling_params, len(prompts))
        priorities = _per_prompt("priority", 0 if priority is None else priority, len(prompts))
        loras = _per_prompt("lora_request", lora_request, len(prompts))
        adapters = [self.llm_engine.adapters.resolve(lora) for lora in loras]
        processed = self._check_all(prompts, every_params, priorities, tokenization_kwargs)
        for one, adapter in zip(processed, adapters, strict=True):
            one.request.adapter = adapter
        return self._start(processed)

    def run_pooling(
        self,
        prompts: Sequence[PromptType],
        every_params: Sequence[PoolingParams],
        tokenization_kwargs: Mapping[str, object],
        use_tqdm: UseTqdm,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Check all requests of a pooling model and run them."""
        with self._engine_lock:
            processed = self._check_all(prompts, every_params, [0] * len(prompts), tokenization_kwargs)
            outputs = self._run(self._start(processed), use_tqdm)
        return [PoolingRequestOutput.of(output) for output in outputs]

    def _check_all(
        self,
        prompts: Sequence[PromptType],
        every_params: Sequence[SamplingParams | PoolingParams],
        priorities: Sequence[int],
        tokenization_kwargs: Mapping[str, object] | None,
    ) -> list[ProcessedRequest]:
        processed: list[ProcessedRequest] = []
        for index, (prompt, params) in enumerate(zip(prompts, every_params, strict=True)):
            try:
                processed.append(
                    self.llm_engine.input_processor.process(
                        str(next(self._request_numbers)),
                        prompt,
                        params,
                        priority=priorities[index],
                        tokenization_kwargs=tokenization_kwargs,
                    )
                )
            except InvalidRequestError as error:
                if len(prompts) == 1:
                    raise
                raise InvalidRequestError(f"prompt {index} of {len(prompts)}: {error}", error.parameter) from error
        return processed

    def _start(self, processed: Sequence[ProcessedRequest]) -> list[str]:
        request_ids = [request.external_id for request in processed]
        try:
            with deferred_interrupt():
                for request in processed:
                    self.llm_engine.add_processed(request)
        except BaseException:
            self.llm_engine.abort_request(request_ids)
            raise
        return request_ids

    def _params_per_prompt(self, sampling_params: SamplingParamsInput, num_prompts: int) -> list[SamplingParams]:
        """Return one SamplingParams per prompt, copies that ask for the final output only."""
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        every_params = []
        for params in _per_prompt("sampling_params", sampling_params, num_prompts):
            if not isinstance(params, SamplingParams):
                raise InvalidRequestError(
                    f"sampling_params must be a SamplingParams or a list of them, got {type(params).__name__}",
                    "sampling_params",
                )
            params = copy.copy(params)
            params.output_kind = RequestOutputKind.FINAL_ONLY
            every_params.append(params)
        return every_params

    def _run(self, request_ids: Sequence[str], use_tqdm: UseTqdm) -> list[RequestOutput]:
        """Step until these requests have finished; return their results in order. When it fails they are aborted."""
        results = {i: self._finished.pop(i) for i in request_ids if i in self._finished}
        wanted = set(request_ids) - results.keys()
        try:
            with Progress(len(request_ids), use_tqdm) as progress, deferred_interrupt() as interrupt:
                for result in results.values():
                    progress.finished(result)
                while wanted and self.llm_engine.has_unfinished_requests():
                    for output in self._finished_in_step():
                        if output.request_id in wanted:
                            wanted.discard(output.request_id)
                            results[output.request_id] = output
                            progress.finished(output)
                        elif output.request_id in self._pending:
                            self._finished[output.request_id] = output
                    interrupt.raise_if_requested()
        except BaseException:
            self.llm_engine.abort_request(wanted)
            raise
        if wanted:
            raise RequestFailedError(f"requests {', '.join(sorted(wanted))} were aborted before they finished")
        return [results[request_id] for request_id in request_ids]

    def _finished_in_step(self) -> Iterable[RequestOutput]:
        for output in self.llm_engine.step():
            if not output.finished:
                continue
            for completion in output.outputs:
                if completion.finish_reason == "error":
                    logger.warning("request %s failed: %s", output.request_id, completion.stop_reason)
            yield output


def _as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> Sequence[Sequence[Message]]:
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequestError(f"messages must be a non-empty list, got {messages!r}", "messages")
    is_one = isinstance(messages[0], Mapping)
    return [messages] if is_one else messages


def _check_content_format(name: str) -> None:
    if name not in ("auto", "string", "openai"):
        raise InvalidRequestError(
            f"chat_template_content_format must be auto, string or openai, got {name!r}", "chat_template_content_format"
        )


def _per_prompt(name: str, value: Any, num_prompts: int) -> list[Any]:
    """Repeat one value, or check that a list has one per prompt."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * num_prompts
    if len(value) != num_prompts:
        raise InvalidRequestError(f"{name} must be one or a list as long as prompts ({num_prompts}), got {len(value)}")
    return list(value)


def _refuse_unbuilt(mm_processor_kwargs: Mapping[str, object] | None) -> None:
    if mm_processor_kwargs:
        raise UnsupportedError("mm_processor_kwargs are not supported: multimodal input is not built")
