"""AsyncLLM: the engine for servers. Requests are async streams; the core computes outside the event loop."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from octavo.config import EngineArgs
from octavo.config.configs import OctavoConfig
from octavo.engine import async_adapters, async_pooling, async_rest
from octavo.engine.adapters import Adapters
from octavo.engine.async_client import ConnectClient
from octavo.engine.async_mp_client import AsyncMPClient
from octavo.engine.grammars import make_grammar_checker
from octavo.engine.input_processor import InputProcessor, ProcessedRequest
from octavo.engine.llm_engine import metrics_of
from octavo.engine.output_collector import RequestOutputCollector
from octavo.engine.process_start import StartedEngine, StartingProcess
from octavo.engine.reasoning import default_reasoning
from octavo.engine.request_streams import RequestStreams
from octavo.engine.request_traces import tracer_of
from octavo.engine.supervisor import RecoveryPolicy
from octavo.engine.sync_mp_client import method_name
from octavo.errors import ConfigError, EngineDeadError, InvalidRequestError, UnsupportedError
from octavo.log import get_logger
from octavo.metrics.engine_metrics import EngineCounts, Metric
from octavo.metrics.replica_metrics import ReplicaMetrics
from octavo.metrics.stats_line import StatsLine
from octavo.parsing.registry import load_plugin
from octavo.structured.checker import GrammarChecker
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.outputs import RequestOutput
from octavo.types.pooling import PoolingParams
from octavo.types.sampling_params import SamplingParams

logger = get_logger(__name__)


class AsyncLLM:
    """A model in a process of its own or in several replicas, for one event loop: the one in which it is first used.

    It may be one of several front ends of these; what is asked of the engine then is done for all of them. When a
    process dies, another takes its place and all requests go on where they were, or at once at other replicas.
    model_config, config: as the core started with them; num_blocks: of the KV cache
    """

    def __init__(self, started: StartedEngine, grammars: GrammarChecker | None, connect: ConnectClient) -> None:
        """grammars: of `make_grammar_checker`; the cores learn its vocabulary before they hear anything else

        Raises UnsupportedError for KV cache events.
        """
        _refuse_kv_events(started.config)
        self.config = started.config
        self.model_config = started.config.model
        self.num_blocks = started.num_blocks
        self.tokenizer = started.tokenizer
        self.metrics = metrics_of(self.config)
        self.grammars = grammars
        self.input_processor = InputProcessor(
            self.model_config,
            self.config.scheduler,
            started.tokenizer,
            started.max_kv_tokens,
            default_reasoning(self.config, started.tokenizer),
            self.grammars,
        )
        self.adapters = Adapters(self.config.lora)
        self.streams = RequestStreams(connect, started.tokenizer, self.metrics, tracer_of(self.config))
        self.engine_core = self.streams.client
        if grammars is not None:
            grammars.send_vocabulary(self.engine_core.load_vocabulary)
        self._serve_front_ends()
        self._stats_line = StatsLine(self.metrics, time.monotonic())
        self._tokenizer_threads = ThreadPoolExecutor(2, thread_name_prefix="octavo-tokenizer")
        # they only wait, for processes that compile; what is known already passes those that wait
        self._grammar_threads = ThreadPoolExecutor(8, thread_name_prefix="octavo-grammar-wait")

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, recovery: RecoveryPolicy | None = None) -> AsyncLLM:
        """Start a core as the options say and wait until it is ready; raises what is wrong with the options.

        recovery: when to give up replacing processes that die
        """
        if engine_args.reasoning_parser_plugin:
            load_plugin(engine_args.reasoning_parser_plugin)
        return cls.from_starting(StartingProcess(engine_args, recovery))

    @classmethod
    def from_starting(cls, starting: StartingProcess) -> AsyncLLM:
        """Wait until a core is ready; raises what is wrong with its options."""
        try:
            resolved = starting.resolve()
            _refuse_kv_events(resolved.config)  # before the core has loaded the model
            grammars = make_grammar_checker(resolved.config, resolved.tokenizer)
            if grammars is not None:
                grammars.read_vocabulary()  # while the core loads
            process = starting.wait()
            return cls(process.engine, grammars, functools.partial(AsyncMPClient, process.handle))
        except BaseException:
            starting.close()
            raise

    def _serve_front_ends(self) -> None:
        async def drain() -> None:
            await self.streams.wait_until_drained()

        async def release() -> None:
            self.streams.gate.set()

        async def engine_counts() -> list[EngineCounts]:
            return self.metrics.counts

        self.engine_core.services.update(hold=self.hold, drain=drain, release=release, engine_counts=engine_counts)
        async_adapters.serve_adapters(self)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: object,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: object | None = None,
        tokenization_kwargs: Mapping[str, object] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        arrival_time: float | None = None,
        reasoning_end_token_ids: Sequence[int] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a request; yield its outputs as sampling_params.output_kind says, the last one with finished=True.

        request_id: need not be unique; outputs carry it, and requests with the same id are not mixed up
        reasoning_end_token_ids: see InputProcessor.process
        A request that fails alone ends with the finish reason "error" and the error text as stop_reason. Raises
        InvalidRequestError or UnsupportedError before anything runs, and EngineDeadError when there is no engine any
        more. Leaving the stream early, or cancelling its task, aborts the request.
        """
        collector = await self.add_request(
            request_id,
            prompt,
            sampling_params,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
            priority=priority,
            data_parallel_rank=data_parallel_rank,
            arrival_time=arrival_time,
            reasoning_end_token_ids=reasoning_end_token_ids,
        )
        finished = False
        try:
            while not finished:
                output = await collector.get()
                finished = output.finished
                yield output
        finally:
            if not finished:
                self.streams.abort(collector.internal_ids)

    async def add_request(
        self,
        request_id: str,
        prompt: object,
        params: SamplingParams | PoolingParams,
        *,
        lora_request: object | None = None,
        tokenization_kwargs: Mapping[str, object] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        arrival_time: float | None = None,
        reasoning_end_token_ids: Sequence[int] | None = None,
    ) -> RequestOutputCollector:
        """Check a request and start it; outputs come out of the collector. `generate` is this and reading it."""

        def process() -> ProcessedRequest:
            adapter = self.adapters.resolve(lora_request)
            processed = self.input_processor.process(
                request_id,
                prompt,
                params,
                priority=priority,
                arrival_time=arrival_time,
                tokenization_kwargs=tokenization_kwargs,
                reasoning_end_token_ids=reasoning_end_token_ids,
            )
            processed.request.adapter = adapter
            return processed

        if self.input_processor.takes_time(prompt, params) or not self.adapters.is_known(lora_request):
            has_grammar = getattr(params, "structured_outputs", None) is not None
            threads = self._grammar_threads if has_grammar else self._tokenizer_threads
            processed = await asyncio.get_running_loop().run_in_executor(threads, process)
        else:
            processed = process()
        return await self.add_processed(processed, trace_headers, data_parallel_rank)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests by the ids they were added with; their streams end with the finish reason "abort"."""
        self.streams.abort_requests([request_id] if isinstance(request_id, str) else list(request_id))

    async def add_processed(
        self,
        processed: ProcessedRequest,
        trace_headers: Mapping[str, str] | None = None,
        data_parallel_rank: int | None = None,
    ) -> RequestOutputCollector:
        """Start a request that the input processor has checked; outputs come out of the collector."""
        num_replicas = self.config.parallel.num_replicas
        if data_parallel_rank is not None and (
            type(data_parallel_rank) is not int or data_parallel_rank not in range(num_replicas)
        ):
            raise InvalidRequestError(
                f"data_parallel_rank must be from 0 to {num_replicas - 1}, for this server has {num_replicas} engine "
                f"replicas, or left out; got {data_parallel_rank!r}",
                "data_parallel_rank",
            )
        self.streams.attach()
        await self.streams.gate.wait()
        return self.streams.start(processed, trace_headers, data_parallel_rank)

    encode = async_pooling.encode
    pooled = async_pooling.pooled

    # -- pausing, sleeping, ending -------------------------------------------------------------------------------------

    pause_generation = async_rest.pause_generation
    resume_generation = async_rest.resume_generation
    is_paused = async_rest.is_paused
    sleep = async_rest.sleep
    wake_up = async_rest.wake_up
    is_sleeping = async_rest.is_sleeping

    async def hold(self, aborts: bool) -> None:
        """Let new requests to this front end wait; aborts: and end those that it has."""
        self.streams.attach()
        self.streams.gate.clear()
        if aborts:
            self.streams.abort_all()

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300) -> None:
        """Wait until no request is unfinished; raises TimeoutError after drain_timeout seconds."""
        self.streams.attach()
        try:
            await asyncio.wait_for(self.streams.wait_until_drained(), drain_timeout)
        except asyncio.TimeoutError:
            count = self.get_num_unfinished_requests()
            raise TimeoutError(f"{count} sequences are still unfinished after {drain_timeout} seconds") from None

    def shutdown(self) -> None:
        """End the core at once; unfinished streams raise EngineDeadError. Idempotent."""
        self.streams.shutdown()
        self._tokenizer_threads.shutdown(wait=False, cancel_futures=True)
        self._grammar_threads.shutdown(wait=False, cancel_futures=True)
        if self.grammars is not None:
            self.grammars.close()

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why the engine serves no request any more; None while it does, or will after a restart."""
        return self.engine_core.dead_error

    @property
    def errored(self) -> bool:
        """Whether the engine is dead for good."""
        return self.dead_error is not None

    @property
    def is_running(self) -> bool:
        """Whether a core is there now: False also while the only one is replaced."""
        return self.engine_core.is_ready

    @property
    def is_stopped(self) -> bool:
        return not self.is_running

    async def check_health(self) -> None:
        """Raise EngineDeadError unless a core is there now; while the only one is replaced, requests wait for it."""
        self.streams.attach()
        if self.dead_error is not None:
            raise self.dead_error
        if not self.is_running:
            raise EngineDeadError("the engine process has died and is being replaced; requests wait for it")

    def get_num_unfinished_requests(self) -> int:
        """Return how many sequences are live (a request with n > 1 counts n times)."""
        return self.streams.num_unfinished

    # -- services ------------------------------------------------------------------------------------------------------

    add_lora = async_adapters.add_lora
    remove_lora = async_adapters.remove_lora
    list_loras = async_adapters.list_loras

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raises when the engine has none."""
        if self.tokenizer is None:
            raise InvalidRequestError("this engine has no tokenizer, because skip_tokenizer_init=True")
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return new parameters with the defaults of the model's generation config."""
        return SamplingParams.from_defaults(self.model_config.default_sampling_params, {})

    def get_metrics(self) -> list[Metric]:
        """Return counters, gauges and histograms as they are now; raises when the engine counts nothing."""
        if not self.metrics.enabled:
            raise ConfigError("there are no metrics, because the engine was started with disable_log_stats=True")
        return self.metrics.snapshot()

    async def metrics_of_all(self) -> ReplicaMetrics:
        """Return what all front ends of the engine have counted together."""
        answers = await self.engine_core.call_front_ends("engine_counts")
        return self.metrics.of_all(msgspec.convert(answers, list[list[EngineCounts]]))

    async def do_log_stats(self) -> None:
        """Log the speed since the last call, and the load."""
        line, _ = self._stats_line.next(await self.metrics_of_all(), time.monotonic())
        logger.info("%s", line)

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget cached prefixes; False when blocks are in use (reset_running_requests preempts their users)."""
        if reset_connector:
            raise UnsupportedError("reset_connector is not supported: KV transfer is not built")
        was_reset: bool = await self.engine_core.call("reset_prefix_cache", reset_running_requests)
        return was_reset

    async def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a worker method by name on every worker. Arguments and results must be plain data: they cross processes.

        Raises TimeoutError after `timeout` seconds.
        """
        name = method_name(method)
        call = self.engine_core.call("collective_rpc", name, timeout, list(args), dict(kwargs or {}))
        try:
            results: list[Any] = await asyncio.wait_for(call, timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(f"collective_rpc({method!r}) gave no result in {timeout} seconds") from None
        return results


def _refuse_kv_events(config: OctavoConfig) -> None:
    if config.cache.enable_kv_events:
        raise UnsupportedError(
            "kv_events_config: servers and AsyncLLM publish no events, which LLMEngine.take_kv_events() returns; "
            "leave it out"
        )
