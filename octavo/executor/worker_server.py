"""A worker behind messages: commands in, replies out. Knows no transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.errors import PeerLostError
from octavo.executor import messages as wire
from octavo.executor.worker_class import start_worker, worker_method
from octavo.log import get_logger
from octavo.types.kv_spec import KVCacheConfig
from octavo.types.raised_error import error_as_data, failed_call_as_data
from octavo.types.step import ModelRunnerOutput

logger = get_logger(__name__)

# Methods whose arguments are more than plain data -> the types of these.
_ARGUMENT_TYPES: Mapping[str, Any] = {"initialize_from_config": tuple[list[KVCacheConfig], int]}


class WorkerServer:
    """Executes commands in the order in which they come."""

    def __init__(self, start: wire.StartWorker) -> None:
        """Load the weights."""
        self._gives_output = start.place.gives_output
        self._rank = start.place.rank
        self._forward: ModelRunnerOutput | Exception | None = None  # what the last step's forward brought
        self._has_failed = False  # the last step has, or one that it was made ahead of
        self._worker = start_worker(start.config, start.checkpoint.open(start.config.load), start.place)

    def handle(self, data: bytes) -> bytes | None:
        """Execute a command; return the reply, if there is to be one."""
        command = wire.decode_command(data)
        if isinstance(command, wire.CallWorker):
            return wire.encode(self._call(command))
        if isinstance(command, wire.RunStep):
            self._run_forward(command)
            if not command.samples:
                return None
        return self._finish_step(command)

    def shutdown(self) -> None:
        self._worker.shutdown()

    def _run_forward(self, command: wire.RunStep) -> None:
        self._has_failed = self._has_failed and command.is_ahead
        try:
            self._forward = self._worker.execute_model(command.step)
        except Exception as error:
            self._forward = error

    def _finish_step(self, command: wire.RunStep | wire.Sample) -> bytes | None:
        forward, self._forward = self._forward, None
        grammar = command.grammar if isinstance(command, wire.Sample) else None
        try:
            if isinstance(forward, Exception):
                raise forward
            output = forward if forward is not None else self._worker.sample_tokens(grammar)
        except Exception as error:  # whatever it is, the executor gets it
            # what was made ahead of a failed step finds not what it expects, and its result is dropped
            if not isinstance(error, PeerLostError) and not self._has_failed:
                logger.exception("step %d failed at rank %d", command.number, self._rank)
            self._has_failed = True
            return wire.encode(wire.ErrorReply(command.number, error_as_data(error)))
        return wire.encode(wire.StepReply(command.number, output)) if self._gives_output else None

    def _call(self, command: wire.CallWorker) -> wire.CallReply | wire.ErrorReply:
        try:
            args = command.args
            if command.method in _ARGUMENT_TYPES:
                args = msgspec.convert(args, _ARGUMENT_TYPES[command.method])
            result = worker_method(self._worker, command.method)(*args, **command.kwargs)
            return wire.CallReply(command.number, msgspec.to_builtins(result))
        except Exception as error:
            return wire.ErrorReply(command.number, failed_call_as_data(error, command.method, f"at rank {self._rank}"))
