"""LLMEngine: the synchronous shell around a core. Text in, text out; the caller drives it with `step`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from octavo import envs
from octavo.config import EngineArgs, OctavoConfig
from octavo.engine.adapters import Adapters
from octavo.engine.async_rest import PauseMode, check_rest
from octavo.engine.core_client import EngineCoreClient, InprocClient
from octavo.engine.grammars import make_grammar_checker
from octavo.engine.input_processor import InputProcessor, ProcessedRequest
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.reasoning import default_reasoning
from octavo.engine.request_traces import tracer_of
from octavo.engine.startup import StartedCore
from octavo.errors import ConfigError, EngineDeadError, InvalidRequestError
from octavo.metrics.engine_metrics import Metric
from octavo.metrics.replica_metrics import ReplicaMetrics
from octavo.parsing.registry import load_plugin
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.kv_events import KVCacheEvent
from octavo.types.outputs import RequestOutput
from octavo.types.pooling import PoolingParams
from octavo.types.sampling_params import SamplingParams
from octavo.utils.names import warn_of_unknown_variables


class LLMEngine:
    """Requests are added, `step` is called while some are unfinished, outputs come out of `step`."""

    def __init__(
        self, config: OctavoConfig, tokenizer: Tokenizer | None, client: EngineCoreClient, max_kv_tokens: int
    ) -> None:
        """config: as the core started with it; max_kv_tokens: longest sequence that its KV cache holds."""
        self.config = config
        self.model_config = config.model
        self.tokenizer = tokenizer
        self.metrics = metrics_of(config)
        self.grammars = make_grammar_checker(config, tokenizer)
        self.input_processor = InputProcessor(
            config.model,
            config.scheduler,
            tokenizer,
            max_kv_tokens,
            default_reasoning(config, tokenizer),
            self.grammars,
        )
        self.adapters = Adapters(config.lora)
        self._output_processor = OutputProcessor(tokenizer, self.metrics, tracer_of(config))
        self.engine_core = client
        self.is_sleeping = False

    @classmethod
    def from_engine_args(
        cls, engine_args: EngineArgs, check_tokenizer: Callable[[Tokenizer | None], object] = lambda tokenizer: None
    ) -> LLMEngine:
        """Resolve the options, load the model and start a core: here, or as envs or replicas want it elsewhere.

        check_tokenizer: may raise before the weights are read
        """
        # imports here and not above: an engine on a given core needs neither checkpoints nor a model, nor sockets
        if engine_args.reasoning_parser_plugin:
            load_plugin(engine_args.reasoning_parser_plugin)
        if (
            envs.enable_multiprocessing()
            or engine_args.data_parallel_size != 1
            or engine_args.data_parallel_backend == "ray"
        ):
            from octavo.engine.process_start import StartingProcess
            from octavo.engine.sync_mp_client import SyncMPClient

            starting = StartingProcess(engine_args)
            try:
                check_tokenizer(starting.resolve().tokenizer)
            except BaseException:
                starting.close()
                raise
            process = starting.wait()
            started = process.engine
            return cls(started.config, started.tokenizer, SyncMPClient(process.handle), started.max_kv_tokens)
        from octavo.engine.resolve import resolve
        from octavo.engine.startup import build_engine_core

        warn_of_unknown_variables()
        resolved = resolve(engine_args)
        check_tokenizer(resolved.tokenizer)
        return cls.from_started(build_engine_core(resolved), resolved.tokenizer)

    @classmethod
    def from_started(cls, started: StartedCore, tokenizer: Tokenizer | None) -> LLMEngine:
        """Wrap a core in this process."""
        return cls(started.config, tokenizer, InprocClient(started.core), started.max_kv_tokens)

    # -- requests ------------------------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: object,
        params: SamplingParams | PoolingParams,
        *,
        priority: int = 0,
        arrival_time: float | None = None,
        tokenization_kwargs: Mapping[str, object] | None = None,
        lora_request: object | None = None,
        reasoning_end_token_ids: Sequence[int] | None = None,
    ) -> str:
        """Check a request and queue it; return its id. Ids need not be unique: outputs carry the id as given.

        reasoning_end_token_ids: see InputProcessor.process
        """
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
        self.add_processed(processed)
        return request_id

    def add_processed(self, processed: ProcessedRequest) -> None:
        """Queue a checked request. Text state first: the core must never answer for a request unknown here."""
        if processed.request.grammar is not None and self.grammars is not None:
            self.grammars.send_vocabulary(self.engine_core.load_vocabulary)
        sequences = self._output_processor.add_request(processed.request, processed.external_id, processed.prompt)
        try:
            for sequence in sequences:
                self._output_processor.placed(sequence, self.engine_core.add_request(sequence))
        except BaseException:
            self._abort_sequences([sequence.request_id for sequence in sequences])
            raise

    def step(self) -> list[RequestOutput]:
        """Let the core do one step; return the outputs that are due.

        Raises EngineDeadError when it cannot any more; no request is unfinished then.
        """
        self.check_awake()
        try:
            outputs = self.engine_core.get_output()
        except EngineDeadError as error:
            self._output_processor.fail_all(error)
            raise
        processed = self._output_processor.process_outputs(outputs)
        if processed.request_ids_to_abort:
            self.engine_core.abort_requests(processed.request_ids_to_abort)
        return processed.request_outputs

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests by the ids they were added with; unknown ids are ignored."""
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self._abort_sequences(self._output_processor.sequences_of(ids))

    def _abort_sequences(self, internal_ids: Sequence[str]) -> None:
        self._output_processor.abort_sequences(internal_ids)
        self.engine_core.abort_requests(internal_ids)

    def has_unfinished_requests(self) -> bool:
        """Say whether `step` has more to give."""
        return self._output_processor.num_unfinished_requests > 0

    def get_num_unfinished_requests(self) -> int:
        """Return how many sequences are live (a request with n > 1 counts n times)."""
        return self._output_processor.num_unfinished_requests

    # -- services ------------------------------------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer; raises when the engine has none."""
        if self.tokenizer is None:
            raise InvalidRequestError("this engine has no tokenizer, because skip_tokenizer_init=True")
        return self.tokenizer

    def get_metrics(self) -> list[Metric]:
        """Return counters, gauges and histograms as they are now; raises when the engine counts nothing."""
        if not self.metrics.enabled:
            raise ConfigError("there are no metrics, because the engine was started with disable_log_stats=True")
        for engine, stats in zip(self.metrics.engines, self.engine_core.scheduler_stats(), strict=True):
            engine.record_scheduler(stats)
        return self.metrics.snapshot()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes; False when blocks are in use."""
        return self.engine_core.reset_prefix_cache(reset_running_requests)

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Rest until `wake_up`; steps raise. level 0: compute nothing; 1: give the KV cache back; 2: and the weights.

        mode: accepted for vLLM's sake: nothing runs between steps, and what was added goes on afterwards
        """
        check_rest(level, mode)
        self.is_sleeping = True
        if level:
            self.engine_core.sleep(level)

    def wake_up(self) -> None:
        """Take the memory again and go on with requests."""
        self.engine_core.wake_up()
        self.is_sleeping = False

    def check_awake(self) -> None:
        """Raise InvalidRequestError between `sleep` and `wake_up`."""
        if self.is_sleeping:
            raise InvalidRequestError("the engine sleeps: call wake_up() before it computes anything")

    def take_kv_events(self) -> list[KVCacheEvent]:
        """Return the KV cache events since the last call; empty unless enabled."""
        return self.engine_core.take_kv_events()

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a worker method by name, or a function with the worker as first argument, on every worker."""
        return self.engine_core.collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call a function with the model on every worker."""
        return self.collective_rpc("apply_model", args=(function,))

    def check_health(self) -> None:
        """Raise EngineDeadError when the engine cannot serve."""
        self.engine_core.check_health()

    def shutdown(self) -> None:
        """Release the core; idempotent."""
        if self.grammars is not None:
            self.grammars.close()
        self.engine_core.shutdown()
        self._output_processor.close()


def metrics_of(config: OctavoConfig) -> ReplicaMetrics:
    """Return what counts for the replicas of this front end."""
    parallel = config.parallel
    return ReplicaMetrics(
        config.model.served_model_name,
        config.observability.log_stats,
        parallel.num_replicas,
        parallel.data_parallel_start_rank,
    )
