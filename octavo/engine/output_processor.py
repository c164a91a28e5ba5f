"""From what the core generated to what the user reads. Owns the front end's state of every live request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.engine.logprobs import TokenTexts
from octavo.engine.parallel_sampling import ParentRequest, fan_out
from octavo.engine.request_state import RequestState, new_request_state
from octavo.metrics.engine_metrics import EngineMetrics
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.messages import EngineCoreOutput, EngineCoreOutputs
from octavo.types.outputs import RequestOutput
from octavo.types.request import EngineCoreRequest, FinishReason


@dataclass(slots=True)
class ProcessedOutputs:
    """One step's results. request_ids_to_abort: sequences that a stop string ended and the core still runs."""

    request_outputs: list[RequestOutput] = field(default_factory=list)
    request_ids_to_abort: list[str] = field(default_factory=list)


class OutputProcessor:
    """Registers requests before the core gets them, and turns the core's outputs into RequestOutputs.

    Two ids: the external one is the user's and need not be unique; the internal one is the core's.
    """

    def __init__(self, tokenizer: Tokenizer | None, metrics: EngineMetrics) -> None:
        self._tokenizer = tokenizer
        self._texts = TokenTexts(tokenizer) if tokenizer is not None else None
        self._metrics = metrics
        self._states: dict[str, RequestState] = {}  # by internal id
        self._internal_ids: dict[str, list[str]] = {}  # external id -> live sequences

    @property
    def num_unfinished_requests(self) -> int:
        """How many sequences are live."""
        return len(self._states)

    def add_request(self, request: EngineCoreRequest, external_id: str, prompt: str | None) -> list[EngineCoreRequest]:
        """Register a request; return what the core must be given: the request, or one per sequence when n > 1."""
        if request.sampling_params.n == 1:
            self._register(request, external_id, prompt, 0, None)
            return [request]
        parent = ParentRequest(request.sampling_params.n)
        children = fan_out(request)
        for index, child in enumerate(children):
            self._register(child, external_id, prompt, index, parent)
        return children

    def process_outputs(self, step: EngineCoreOutputs) -> ProcessedOutputs:
        """Apply one step of the core."""
        processed = ProcessedOutputs()
        for output in step.outputs:
            self._process_one(output, step.timestamp, processed)
        if step.scheduler_stats is not None:
            self._metrics.record_scheduler(step.scheduler_stats)
        return processed

    def sequences_of(self, external_ids: Iterable[str]) -> list[str]:
        """Return the internal ids of all live sequences of these requests; unknown ids have none."""
        return [internal_id for i in external_ids for internal_id in self._internal_ids.get(i, ())]

    def abort_sequences(self, internal_ids: Iterable[str]) -> list[RequestOutput]:
        """Forget sequences; return their last outputs, with finish reason "abort"."""
        outputs: list[RequestOutput] = []
        for internal_id in internal_ids:
            state = self._states[internal_id]
            state.finish(FinishReason.ABORT, None)
            self._add_output(state, outputs)
            self._forget(state)
        return outputs

    def _process_one(self, output: EngineCoreOutput, timestamp: float, processed: ProcessedOutputs) -> None:
        state = self._states.get(output.request_id)
        if state is None:  # ended here (a stop string, an abort) before the core heard of it
            return
        last_token_ts = state.metrics.last_token_ts
        num_tokens = len(state.token_ids)
        if state.update(output, timestamp):
            processed.request_ids_to_abort.append(output.request_id)
        num_new = len(state.token_ids) - num_tokens
        self._metrics.record_tokens(state.metrics, num_new, last_token_ts, len(state.request.prompt_token_ids))
        self._add_output(state, processed.request_outputs)
        if state.finish_reason is not None:
            self._forget(state)

    def _add_output(self, state: RequestState, outputs: list[RequestOutput]) -> None:
        output = state.make_output()
        if output is not None:
            outputs.append(output)

    def _register(
        self, request: EngineCoreRequest, external_id: str, prompt: str | None, index: int, parent: ParentRequest | None
    ) -> None:
        assert request.request_id not in self._states, f"internal id {request.request_id} is not unique"
        state = new_request_state(request, external_id, prompt, index, parent, self._tokenizer, self._texts)
        self._states[request.request_id] = state
        self._internal_ids.setdefault(external_id, []).append(request.request_id)

    def _forget(self, state: RequestState) -> None:
        assert state.finish_reason is not None
        self._metrics.record_finished(state.metrics, state.finish_reason, len(state.request.prompt_token_ids))
        del self._states[state.request.request_id]
        siblings = self._internal_ids[state.external_id]
        siblings.remove(state.request.request_id)
        if not siblings:
            del self._internal_ids[state.external_id]
