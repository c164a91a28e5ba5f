"""Logits processors that users write: vLLM's batch interface, and the per-request adapter on top of it.

Differences from vLLM: logits are NumPy arrays; a batch processor's index is the request's row, which never moves, so
`moved` is always empty; rows of requests that sample nothing in a step hold zeros. An adapter fails only its own
request, a batch processor every request that samples in the step.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ConfigError, InvalidRequestError
from octavo.ops.interface import Float
from octavo.sampling.row_processors import RowProcessor
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import NewRequestData
from octavo.utils.imports import import_by_name


class MoveDirectionality(enum.Enum):
    """How a request changes its index."""

    UNIDIRECTIONAL = 0
    SWAP = 1


AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]  # index, params, prompt ids, live output ids
RemovedRequest = int
MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """What changed since the last step: apply removed, then added. An index in added replaces what was there."""

    batch_size: int
    removed: Sequence[RemovedRequest]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest] = ()


@dataclass(frozen=True)
class ProcessorContext:
    """What a processor's constructor is told about the engine."""

    vocab_size: int
    max_num_seqs: int


class LogitsProcessor:
    """Base of all custom processors; the constructor gets (context, device, is_pin_memory)."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for a request whose parameters (usually extra_args) the processor cannot use."""

    def __init__(self, context: ProcessorContext, device: str, is_pin_memory: bool) -> None:
        self.context = context

    def apply(self, logits: Float) -> Float:
        """Return logits [batch_size, V], changed in place or new."""
        raise NotImplementedError(f"{type(self).__name__}.apply")

    def is_argmax_invariant(self) -> bool:
        """Tell whether the most likely id can never change: if so, greedy requests skip the processor."""
        raise NotImplementedError(f"{type(self).__name__}.is_argmax_invariant")

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Take note of requests that came and went; None when nothing changed."""
        raise NotImplementedError(f"{type(self).__name__}.update_state")


RequestCallable = Callable[..., Float]  # (output_ids, logits [V]) or (prompt_ids, output_ids, logits [V]) -> logits


class AdapterLogitsProcessor(LogitsProcessor):
    """Base of processors that look at one request at a time."""

    def new_req_logits_processor(self, params: SamplingParams) -> RequestCallable | None:
        """Return the request's callable, or None when the request needs none."""
        raise NotImplementedError(f"{type(self).__name__}.new_req_logits_processor")

    def is_argmax_invariant(self) -> bool:
        return False


class CallableProcessor:
    """Runs a request's callable as a row processor."""

    def __init__(self, function: RequestCallable, prompt_ids: list[int]) -> None:
        self._function = function
        takes_prompt = len(inspect.signature(function).parameters) == 3
        self._leading_args: tuple[list[int], ...] = (prompt_ids,) if takes_prompt else ()

    def apply(self, logits: Float, output_ids: Sequence[int]) -> None:
        returned = self._function(*self._leading_args, output_ids, logits)
        if np.shape(returned) != logits.shape:  # a scalar or None would be broadcast over all logits
            what = f"shape {np.shape(returned)}" if returned is not None else "None"
            raise ValueError(f"the processor returned {what}, expected logits of shape {logits.shape}")
        logits[:] = returned


class CustomProcessors:
    """The engine's custom processors: adapters make row processors, the others run on the batch."""

    def __init__(self, classes: Sequence[type[LogitsProcessor]], vocab_size: int, max_num_seqs: int) -> None:
        context = ProcessorContext(vocab_size, max_num_seqs)
        instances = [processor_class(context, "cpu", False) for processor_class in classes]
        self._adapters = [p for p in instances if isinstance(p, AdapterLogitsProcessor)]
        self._batch = [p for p in instances if not isinstance(p, AdapterLogitsProcessor)]
        self._early = [p for p in self._batch if not p.is_argmax_invariant()]
        self._late = [p for p in self._batch if p.is_argmax_invariant()]
        self._vocab_size = vocab_size
        self._present: set[int] = set()
        self._added: dict[int, AddedRequest] = {}
        self._announced: set[int] = set()  # what the processors know of

    @property
    def runs_on_batch(self) -> bool:
        return bool(self._batch)

    @property
    def runs_after_temperature(self) -> bool:
        return bool(self._late)

    def make_row_processors(self, request: NewRequestData) -> tuple[list[RowProcessor], list[RowProcessor]]:
        """Return the request's callables that run before and after the temperature."""
        early: list[RowProcessor] = []
        late: list[RowProcessor] = []
        for adapter in self._adapters:
            function = adapter.new_req_logits_processor(request.sampling_params)
            if function is not None:
                prompt_ids = request.token_ids[: request.num_prompt_tokens]
                (late if adapter.is_argmax_invariant() else early).append(CallableProcessor(function, prompt_ids))
        return early, late

    def add(self, row: int, request: NewRequestData, output_ids: list[int]) -> None:
        """Announce a request to the batch processors; output_ids: the list that will grow with it."""
        prompt_ids = request.token_ids[: request.num_prompt_tokens]
        self._present.add(row)
        self._added[row] = (row, request.sampling_params, prompt_ids, output_ids)

    def remove(self, row: int) -> None:
        """Announce that the row is free."""
        self._present.discard(row)
        self._added.pop(row, None)

    def update(self) -> None:
        """Tell the batch processors what changed since the last step."""
        update = None
        removed = sorted(self._announced - self._present)
        if self._added or removed:
            update = BatchUpdate(self._batch_size(), removed, list(self._added.values()))
            self._added, self._announced = {}, set(self._present)
        for processor in self._batch:
            processor.update_state(update)

    def apply(self, logits: Float, rows: NDArray[np.intp], late: bool) -> None:
        """Run one stage's batch processors on logits [N, V] of the given rows, in place."""
        processors = self._late if late else self._early
        if not processors:
            return
        by_row: Float = np.zeros((self._batch_size(), self._vocab_size), np.float32)
        by_row[rows] = logits
        for processor in processors:
            result = processor.apply(by_row)
            if result.shape != by_row.shape:
                raise ValueError(f"{type(processor).__name__}.apply returned shape {result.shape}, not {by_row.shape}")
            by_row = result
        logits[:] = by_row[rows]

    def _batch_size(self) -> int:
        return max(self._present, default=-1) + 1


def load_logits_processor(spec: object) -> type[LogitsProcessor]:
    """Return the class that spec is, or names as "module:Class". Raises ConfigError for anything else."""
    found: object = import_by_name(spec) if isinstance(spec, str) else spec
    if not (isinstance(found, type) and issubclass(found, LogitsProcessor)):
        raise ConfigError(f"logits processor must be a subclass of {__name__}.LogitsProcessor, got {found!r}")
    return found


def validate_with_processors(classes: Sequence[type[LogitsProcessor]], params: SamplingParams) -> None:
    """Let every processor check a request's parameters; raises InvalidRequestError with its words."""
    for processor in classes:
        try:
            processor.validate_params(params)
        except ValueError as error:
            raise InvalidRequestError(f"{processor.__name__}: {error}", parameter="extra_args") from error
