"""From what the core generated to what the user reads. Owns the front end's state of every live request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from octavo.engine.logprobs import TokenTexts
from octavo.engine.output_collector import RequestOutputCollector
from octavo.engine.parallel_sampling import ParentRequest, fan_out
from octavo.engine.request_state import RequestState, new_request_state
from octavo.engine.request_traces import RequestTraces
from octavo.log import get_logger
from octavo.metrics.engine_metrics import StepTally
from octavo.metrics.replica_metrics import ReplicaMetrics
from octavo.metrics.tracing import RequestTracer
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.messages import EngineCoreOutput, EngineCoreOutputs
from octavo.types.outputs import RequestOutput
from octavo.types.request import EngineCoreRequest, FinishReason
from octavo.types.sampling_params import RequestOutputKind

logger = get_logger(__name__)


@dataclass(slots=True)
class ProcessedOutputs:
    """One step's results, but for outputs that went to a collector.

    request_ids_to_abort: sequences that a stop string ended and the core still runs
    """

    request_outputs: list[RequestOutput] = field(default_factory=list)
    request_ids_to_abort: list[str] = field(default_factory=list)


class OutputProcessor:
    """Registers requests before the core gets them, and turns the core's outputs into RequestOutputs.

    Two ids: the external one is the user's and need not be unique; the internal one is the core's.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, metrics: ReplicaMetrics, tracer: RequestTracer | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._traces = RequestTraces(tracer) if tracer is not None else None
        self._texts = TokenTexts(tokenizer) if tokenizer is not None else None
        self._metrics = metrics.engines
        self._states: dict[str, RequestState] = {}  # by internal id
        self._internal_ids: dict[str, list[str]] = {}  # external id -> live sequences

    @property
    def num_unfinished_requests(self) -> int:
        """How many sequences are live."""
        return len(self._states)

    def add_request(
        self,
        request: EngineCoreRequest,
        external_id: str,
        prompt: str | None,
        collector: RequestOutputCollector | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> list[EngineCoreRequest]:
        """Register a request; return what the core must be given: the request, or one per sequence when n > 1.

        collector: where all outputs of the request go, instead of to whoever processes the step
        trace_headers: the trace context of whoever asks
        """
        num_sequences = request.sampling_params.n
        parent = ParentRequest(num_sequences) if num_sequences > 1 else None
        sequences = fan_out(request) if parent is not None else [request]
        for index, sequence in enumerate(sequences):
            self._register(sequence, external_id, prompt, index, parent, collector)
        if self._traces is not None:
            self._traces.started(request.sampling_params, sequences, external_id, trace_headers)
        return sequences

    def placed(self, request: EngineCoreRequest, engine_index: int) -> None:
        """Note which replica computes a sequence; its outputs say so too, also if that changes."""
        self._states[request.request_id].engine_index = engine_index

    def process_outputs(self, step: EngineCoreOutputs) -> ProcessedOutputs:
        """Apply one step of the core."""
        processed, tally, metrics = ProcessedOutputs(), StepTally(), self._metrics[step.engine_index]
        for output in step.outputs:
            try:
                self._process_one(output, step, processed, tally)
            except Exception as error:  # one request's text must not end the others
                logger.exception("the output of request %s could not be processed", output.request_id)
                self._fail_one(output.request_id, f"{type(error).__name__}: {error}", processed)
        metrics.record_step(tally, step.timestamp)
        if step.scheduler_stats is not None:
            metrics.record_scheduler(step.scheduler_stats)
        return processed

    def sequences_of(self, external_ids: Iterable[str]) -> list[str]:
        """Return the internal ids of all live sequences of these requests; unknown ids have none."""
        return [internal_id for i in external_ids for internal_id in self._internal_ids.get(i, ())]

    def all_sequences(self) -> list[str]:
        """Return the internal ids of all live sequences."""
        return list(self._states)

    def abort_sequences(self, internal_ids: Iterable[str]) -> list[RequestOutput]:
        """Forget sequences (ended ones are passed over); their last outputs have the finish reason "abort".

        Returns the outputs of those that have no collector.
        """
        outputs: list[RequestOutput] = []
        for internal_id in internal_ids:
            state = self._states.get(internal_id)
            if state is None:
                continue
            state.finish(FinishReason.ABORT, None)
            self._add_output(state, outputs)
            self._forget(state)
        return outputs

    def fail_all(self, error: Exception) -> None:
        """Forget every sequence; streams end with the error."""
        for state in list(self._states.values()):
            state.finish(FinishReason.ERROR, str(error))
            if state.collector is not None:
                state.collector.fail(error)
            self._forget(state)

    def close(self) -> None:
        """Send the traces that are left; idempotent."""
        if self._traces is not None:
            self._traces.close()

    def _process_one(
        self, output: EngineCoreOutput, step: EngineCoreOutputs, processed: ProcessedOutputs, tally: StepTally
    ) -> None:
        state = self._states.get(output.request_id)
        if state is None:  # ended here (a stop string, an abort) before the core heard of it
            return
        last_token_ts = state.metrics.last_token_ts
        state.engine_index = step.engine_index
        num_new = state.update(output, step.timestamp)
        if num_new:
            tally.num_tokens += num_new
        if num_new and last_token_ts:
            tally.num_gaps_since[last_token_ts] = tally.num_gaps_since.get(last_token_ts, 0) + 1
        elif num_new or output.pooled is not None:
            num_prompt_tokens = len(state.request.prompt_token_ids)
            metrics = self._metrics[step.engine_index]
            metrics.record_prompt(state.metrics, num_prompt_tokens, state.num_cached_tokens or 0)
        is_over = state.finish_reason is not None
        if is_over or state.output_kind is not RequestOutputKind.FINAL_ONLY:
            self._add_output(state, processed.request_outputs)
        if is_over:
            if output.finish_reason is None:  # a stop string, of which the core knows nothing
                processed.request_ids_to_abort.append(output.request_id)
            self._forget(state)

    def _fail_one(self, internal_id: str, error: str, processed: ProcessedOutputs) -> None:
        """End a sequence with an error; its text is left as it was last told."""
        state = self._states.get(internal_id)
        if state is None:
            return
        processed.request_ids_to_abort.append(internal_id)
        state.finish_reason, state.stop_reason, state.text = FinishReason.ERROR, error, None
        self._add_output(state, processed.request_outputs)
        self._forget(state)

    def _add_output(self, state: RequestState, outputs: list[RequestOutput]) -> None:
        output = state.make_output()
        if output is None:
            return
        if state.collector is not None:
            state.collector.put(output)
        else:
            outputs.append(output)

    def _register(
        self,
        request: EngineCoreRequest,
        external_id: str,
        prompt: str | None,
        index: int,
        parent: ParentRequest | None,
        collector: RequestOutputCollector | None,
    ) -> None:
        assert request.request_id not in self._states, f"internal id {request.request_id} is not unique"
        state = new_request_state(request, external_id, prompt, index, parent, self._tokenizer, self._texts)
        state.collector = collector
        self._states[request.request_id] = state
        self._internal_ids.setdefault(external_id, []).append(request.request_id)

    def _forget(self, state: RequestState) -> None:
        assert state.finish_reason is not None
        metrics = self._metrics[state.engine_index]
        if state.index == 0:
            num_sequences = 1 if state.parent is None else state.parent.num_children
            metrics.record_params(num_sequences, state.request.sampling_params.max_tokens)
        metrics.record_finished(state.metrics, state.finish_reason, len(state.request.prompt_token_ids))
        if self._traces is not None:
            self._traces.ended(state)
        del self._states[state.request.request_id]
        siblings = self._internal_ids[state.external_id]
        siblings.remove(state.request.request_id)
        if not siblings:
            del self._internal_ids[state.external_id]
