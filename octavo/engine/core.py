"""The engine core: a scheduler and an executor, and the step that joins them.

Knows requests and token ids; never text, never arrays. Runs in the front end's process or in one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue

from octavo.engine.step_queue import StepQueue
from octavo.errors import EngineDeadError, OctavoError, RequestFailedError
from octavo.executor.interface import Executor
from octavo.log import get_logger
from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.scheduler import Scheduler
from octavo.structured.manager import StructuredOutputManager
from octavo.types.messages import EngineCoreOutputs
from octavo.types.raised_error import error_as_data
from octavo.types.request import EngineCoreRequest
from octavo.types.step import SchedulerOutput

logger = get_logger(__name__)


class EngineCore:
    """Takes requests, gives tokens, one step at a time. Only `queue_abort` may be called from another thread.

    before_step: told of every step before it computes
    dead_error: why nothing works any more: a worker is gone, or the books of blocks and requests cannot be trusted
    """

    def __init__(
        self, executor: Executor, scheduler: Scheduler, grammars: StructuredOutputManager | None = None
    ) -> None:
        """grammars: what the scheduler has as its grammar hook"""
        self.executor = executor
        self.scheduler = scheduler
        self._grammars = grammars
        self.before_step: Callable[[SchedulerOutput], None] | None = None
        self.dead_error: EngineDeadError | None = None
        self.is_paused = False
        self.sleep_level = 0  # 0: awake; see `sleep`
        self._queued_aborts: SimpleQueue[Sequence[str]] = SimpleQueue()
        self._steps = StepQueue(executor)
        self.reset_prefix_cache = scheduler.reset_prefix_cache
        self.scheduler_stats = scheduler.make_stats
        self.snapshot = scheduler.make_snapshot
        self.take_kv_events = scheduler.take_kv_events
        self.collective_rpc = executor.collective_rpc

    # -- requests ------------------------------------------------------------------------------------------------------

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request; its tokens come out of later steps. Raises EngineDeadError when none will."""
        with _Bookkeeping(self):
            if request.adapter is not None:
                self.load_adapter(request.adapter.path, request.adapter.identity)
            self.scheduler.add_request(Request.from_core_request(request))

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End these requests now and free their blocks; ids that have finished already are ignored."""
        if self.dead_error is not None:
            return
        with _Bookkeeping(self):
            self.scheduler.finish_requests(list(request_ids), RequestStatus.FINISHED_ABORTED)

    def queue_abort(self, request_ids: Sequence[str]) -> None:
        """Ask from another thread that these requests end; done between a step's forward and its bookkeeping."""
        self._queued_aborts.put(request_ids)

    def has_work(self) -> bool:
        """Say whether a step would have something to compute or deliver."""
        return bool(self._steps) or self._may_schedule()

    def _may_schedule(self) -> bool:
        return self.scheduler.has_unfinished_requests() and not self.is_paused and not self.sleep_level

    # -- step ----------------------------------------------------------------------------------------------------------

    def step(self) -> EngineCoreOutputs | None:
        """Schedule, execute, sample, update; return what came of it, None if there was nothing to do.

        Where the executor works on several steps at a time, as many are started, and the oldest is waited for.

        A forward or a sampling that fails ends the step's requests with an error, and the others go on. Whatever else
        fails ends the core: this and all later steps raise EngineDeadError.
        """
        with _Bookkeeping(self):
            return self._step()

    def _step(self) -> EngineCoreOutputs | None:
        self._process_queued_aborts()
        while self._may_start_another():
            self._start_step()
        if not self._steps:
            return None
        step, model_output = self._steps.finish_oldest()
        # before the update: a request that nobody waits for gets no more work and no output
        self._process_queued_aborts()
        outputs = self.scheduler.update_from_output(step, model_output)
        if model_output.failures and len(model_output.failures) == len(step.num_scheduled_tokens):
            self._discard_what_followed()
        outputs.scheduler_stats = self.scheduler.make_stats()
        outputs.scheduler_stats.num_step_tokens = step.total_num_scheduled_tokens
        return outputs

    def _discard_what_followed(self) -> None:
        """After a step that failed as a whole: what was started since may have read what that one never computed."""
        while self._steps:
            step, _ = self._steps.finish_oldest()
            self.scheduler.discard(step)

    def _may_start_another(self) -> bool:
        if not self._steps:
            return self._may_schedule()
        return self._steps.has_room and self._may_schedule() and not self.scheduler.awaits_results()

    def _start_step(self) -> None:
        step = self._steps.complete(self.scheduler.schedule())
        if self.before_step is not None:
            self.before_step(step)
        self._steps.start(step, self.scheduler.get_grammar_bitmask)
        if not step.num_scheduled_tokens and self._grammars is not None and len(self._steps) == 1:
            # all requests may wait for theirs: no spinning meanwhile; last, for it may be interrupted
            self._grammars.wait(_GRAMMAR_WAIT_S)

    def _process_queued_aborts(self) -> None:
        while not self._queued_aborts.empty():  # nobody else takes from it
            self.abort_requests(self._queued_aborts.get_nowait())

    # -- pausing and sleeping ------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Compute nothing until `resume`; requests stay where they are."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on after `pause`."""
        self.is_paused = False

    def sleep(self, level: int) -> None:
        """Give memory back and compute nothing until `wake_up`. level 1: the KV cache; 2: the weights too.

        Running requests are preempted and go on afterwards.
        """
        if self.sleep_level:
            return
        is_empty = self.scheduler.reset_prefix_cache(reset_running_requests=True)
        assert is_empty, "requests that wait hold no blocks"
        self.executor.collective_rpc("sleep", args=(level,))
        self.sleep_level = level

    def wake_up(self) -> None:
        """Take the memory again and go on after `sleep`."""
        if self.sleep_level:
            self.executor.collective_rpc("wake_up")
            self.sleep_level = 0

    # -- services ------------------------------------------------------------------------------------------------------

    def load_vocabulary(self, packed: bytes) -> None:
        """Learn the tokens' bytes (see Vocabulary.pack); must come before the first request with a grammar.

        Done when this returns, unless somebody would wait for it: the library holds the interpreter lock meanwhile.
        """
        assert self._grammars is not None, "a core without grammars gets no requests with one"
        self._grammars.load_vocabulary(packed, beside_steps=self.has_work())

    def load_adapter(self, path: str, identity: str) -> None:
        """Let the workers read a LoRA adapter, unless they have it. Raises what is wrong with it."""
        in_use = sorted(self.scheduler.adapters_in_use())
        try:
            self.executor.collective_rpc("load_adapter", args=(path, identity, in_use))
        except OctavoError:
            raise
        except Exception as error:  # no memory for it, say: nothing else is affected
            reason = error_as_data(error).text
            raise RequestFailedError(f"the LoRA adapter at {path} could not be loaded: {reason}") from error

    def check_health(self) -> None:
        """Raise EngineDeadError when the core or a worker is gone."""
        if self.dead_error is not None:
            raise self.dead_error
        self.executor.check_health()

    def shutdown(self) -> None:
        """Release the workers; idempotent."""
        if self._grammars is not None:
            self._grammars.close()
        self.executor.shutdown()


class _Bookkeeping:
    """Ends the core when what is done in here fails: blocks and requests may be half changed then."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def __enter__(self) -> None:
        if self._core.dead_error is not None:
            raise self._core.dead_error

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, EngineDeadError):
            self._core.dead_error = error
        elif isinstance(error, Exception) and not isinstance(error, OctavoError):  # those refuse before any change
            logger.exception("the engine's bookkeeping failed; it ends")
            self._core.dead_error = EngineDeadError(f"the engine's bookkeeping failed: {type(error).__name__}: {error}")
            raise self._core.dead_error from error


_GRAMMAR_WAIT_S = 0.01
