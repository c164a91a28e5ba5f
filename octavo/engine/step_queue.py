"""The steps that an executor works on: started in order, ended in order, and what is left of those that fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from octavo.errors import EngineDeadError
from octavo.executor.interface import Done, Executor, PendingOutput
from octavo.log import get_logger
from octavo.types.raised_error import error_as_data
from octavo.types.step import GrammarOutput, ModelRunnerOutput, SchedulerOutput

logger = get_logger(__name__)

GetGrammar = Callable[[SchedulerOutput], "GrammarOutput | None"]


class StepQueue:
    """Oldest first. A step that fails has an output too: all its requests have failed."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._steps: deque[tuple[SchedulerOutput, PendingOutput]] = deque()
        self._num_in_doubt = 0  # of the oldest steps: started before it was known that one before them failed
        # what a failed step was to tell the workers: told again with the next one
        self._unsent_finished: list[str] = []
        self._unsent_preempted: list[str] = []

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def has_room(self) -> bool:
        """Whether one more is of use behind those under way: it is not behind an empty one."""
        newest, _ = self._steps[-1]
        return len(self._steps) < self._executor.max_concurrent_batches and bool(newest.num_scheduled_tokens)

    def complete(self, step: SchedulerOutput) -> SchedulerOutput:
        """Add to a new step what failed ones could not tell the workers."""
        if self._unsent_finished or self._unsent_preempted:
            step.finished_request_ids = [*self._unsent_finished, *step.finished_request_ids]
            step.preempted_request_ids = [*self._unsent_preempted, *step.preempted_request_ids]
            self._unsent_finished, self._unsent_preempted = [], []
        return step

    def start(self, step: SchedulerOutput, get_grammar: GetGrammar) -> None:
        """Let the executor begin a step. Raises EngineDeadError."""
        try:
            pending = self._executor.submit(step, get_grammar)
        except EngineDeadError:
            raise
        except Exception as error:
            pending = Done(self._failed_with(step, error))
        except BaseException:  # Ctrl-C: the books must agree with what the workers did, then it goes on
            self._steps.append((step, Done(self._failed(step, "interrupted"))))
            raise
        self._steps.append((step, pending))

    def finish_oldest(self) -> tuple[SchedulerOutput, ModelRunnerOutput]:
        """Wait for the oldest step, and return it with its output. Raises EngineDeadError."""
        step, pending = self._steps.popleft()
        is_in_doubt, self._num_in_doubt = self._num_in_doubt > 0, max(self._num_in_doubt - 1, 0)
        try:
            output = pending.result()
        except EngineDeadError:
            raise
        except Exception as error:
            if is_in_doubt:  # as was to be expected: it tells nothing new
                return step, self._failed(step, error_as_data(error).text)
            self._num_in_doubt = len(self._steps)
            return step, self._failed_with(step, error)
        except BaseException:
            self._steps.appendleft((step, Done(self._failed(step, "interrupted"))))
            raise
        assert output is not None, "a whole step has an output"
        return step, output

    def _failed_with(self, step: SchedulerOutput, error: Exception) -> ModelRunnerOutput:
        logger.exception("a step of %d requests failed; they end with an error", len(step.num_scheduled_tokens))
        return self._failed(step, error_as_data(error).text)

    def _failed(self, step: SchedulerOutput, error: str) -> ModelRunnerOutput:
        self._unsent_finished += step.finished_request_ids
        self._unsent_preempted += step.preempted_request_ids
        return ModelRunnerOutput(failures=dict.fromkeys(step.num_scheduled_tokens, error))
