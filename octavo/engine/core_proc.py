"""The engine core in a process of its own: messages in, steps, messages out.

Three threads: this one runs the core and sends; one receives, so that an abort is seen while a step computes; and the
socket library's own. An idle process waits in all of them. When the front end is gone, whatever the reason, the
process ends at once and takes the meeting place with it.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

import msgspec
import zmq

from octavo.config import EngineArgs
from octavo.engine import core_messages as wire
from octavo.engine.core import EngineCore
from octavo.engine.core_child import core_addresses
from octavo.engine.startup import StartedCore
from octavo.errors import EngineDeadError, OctavoError, PeerLostError
from octavo.log import get_logger
from octavo.types.messages import EngineCoreOutput, EngineCoreOutputs
from octavo.types.raised_error import error_as_data, failed_call_as_data
from octavo.types.request import FinishReason
from octavo.types.step import SchedulerOutput
from octavo.utils.frames import receive_frame, send_frame
from octavo.utils.processes import end_process

logger = get_logger(__name__)


@dataclass(frozen=True)
class WorkerDied:
    """In the inbox: a worker's process has ended, of which a core without work would not hear otherwise."""


class EngineCoreProc:
    """The loop around a core.

    inbox: filled by the receiving thread; send, note: give something to the front end
    """

    def __init__(
        self,
        core: EngineCore,
        inbox: SimpleQueue[wire.CoreMessage | WorkerDied],
        send: Callable[[wire.FrontMessage], None],
        note: Callable[[wire.Note], None],
    ) -> None:
        self._core = core
        self.num_sent = 0
        self._inbox = inbox
        self._send_away = send
        self._note = note
        self._is_stopped = False
        self._are_stats_due = False
        self._services: Mapping[str, Callable[..., Any]] = {
            "reset_prefix_cache": core.reset_prefix_cache,
            "scheduler_stats": core.scheduler_stats,
            "snapshot": core.snapshot,
            "take_kv_events": core.take_kv_events,
            "collective_rpc": core.collective_rpc,
            "load_vocabulary": core.load_vocabulary,
            "load_adapter": core.load_adapter,
            "check_health": core.check_health,
            "pause": core.pause,
            "resume": core.resume,
            "sleep": core.sleep,
            "wake_up": core.wake_up,
            "is_sleeping": lambda: core.sleep_level > 0,
        }
        core.before_step = self._announce

    def run(self) -> None:
        """Serve until told to stop."""
        while not self._is_stopped:
            self._take_messages()
            if self._core.has_work() and not self._is_stopped and (outputs := self._core.step()) is not None:
                self._send(wire.StepDone(outputs))
                self._are_stats_due = False
        self._core.shutdown()

    def _send(self, message: wire.FrontMessage) -> None:
        self.num_sent += 1
        self._send_away(message)

    def _take_messages(self) -> None:
        """Handle all messages that are there; without work, wait for one."""
        while not self._is_stopped:
            try:
                message = self._inbox.get_nowait()
            except Empty:
                if self._core.has_work():
                    return
                self._report_if_due()
                message = self._inbox.get()
            self._handle(message)

    def _handle(self, message: wire.CoreMessage | WorkerDied) -> None:
        if isinstance(message, wire.AddRequest):
            self._add(message)
        elif isinstance(message, wire.AbortRequests):
            self._core.abort_requests(message.request_ids)
            self._are_stats_due = True
        elif isinstance(message, wire.CallService):
            self._answer(message)
        elif isinstance(message, WorkerDied):
            self._core.check_health()
        else:
            self._is_stopped = True

    def _add(self, message: wire.AddRequest) -> None:
        try:
            self._core.add_request(message.request)
        except EngineDeadError:
            raise
        except OctavoError as error:
            refusal = EngineCoreOutput(message.request.request_id, [], None, None, FinishReason.ERROR, str(error))
            self._send(wire.StepDone(EngineCoreOutputs(outputs=[refusal])))

    def _answer(self, call: wire.CallService) -> None:
        try:
            result = self._services[call.method](*call.args)
            answer = wire.CallResult(call.call_id, msgspec.to_builtins(result))
            wire.encode(answer)
        except Exception as error:  # whatever it is, the caller gets it, and the core goes on
            answer = wire.CallResult(
                call.call_id, None, failed_call_as_data(error, call.method, "in the engine's process")
            )
        self._send(answer)

    def _report_if_due(self) -> None:
        """Before waiting: tell the front end that aborted requests are gone, which no step does."""
        if self._are_stats_due:
            self._are_stats_due = False
            self._send(wire.StepDone(EngineCoreOutputs(scheduler_stats=self._core.scheduler_stats())))

    def _announce(self, step: SchedulerOutput) -> None:
        """Say whose computation begins, so that it is known if the process does not survive it."""
        if step.scheduled_new_requests:
            self._note(wire.Admitted([request.request_id for request in step.scheduled_new_requests]))


# -- the process -------------------------------------------------------------------------------------------------------


def main(lifeline_fd: int, directory: str) -> NoReturn:
    """Run a core for the front end at the other end of the lifeline; entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline = socket.socket(fileno=lifeline_fd)
    try:
        start = wire.decode_start(receive_frame(lifeline))
    except EOFError:
        _leave(directory)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    input_address, output_address = core_addresses(directory, start)
    output = context.socket(zmq.PUSH)
    output.set_hwm(0)
    output.connect(output_address)
    receiver = _Receiver(context, input_address, lifeline, directory)
    threading.Thread(target=receiver.run, name="receive", daemon=True).start()
    try:
        started = _build(start)
    except BaseException as error:
        if not isinstance(error, OctavoError):
            logger.exception("the engine could not start")
        send_frame(lifeline, wire.encode(wire.StartFailed(error_as_data(error))))
        end_process(1)
    receiver.on_abort = started.core.queue_abort
    started.core.executor.on_failure(lambda: receiver.inbox.put(WorkerDied()))
    proc = EngineCoreProc(
        started.core,
        receiver.inbox,
        send=lambda message: output.send(wire.encode(message)),
        note=lambda note: send_frame(lifeline, wire.encode(note)),
    )
    gc.collect()
    gc.freeze()  # what is there stays: later collections need not look at it
    send_frame(lifeline, wire.encode(_ready_note(started)))
    try:
        proc.run()
    except BaseException as error:
        if not isinstance(error, EngineDeadError):  # whoever raises that has logged its cause
            logger.exception("the engine's process has failed and ends")
        send_frame(lifeline, wire.encode(wire.CoreFailed(error_as_data(error).text, proc.num_sent)))
        output.close(linger=_FLUSH_TIMEOUT_MS)  # what the last steps gave is given: requests have advanced
        context.term()
        if isinstance(error, PeerLostError) and error.signal is not None:
            os.kill(os.getpid(), error.signal)  # as the worker ended: it may have been nobody's computation
        end_process(1)
    end_process(0)


class _Receiver:
    """Fills the inbox, and ends the process when the front end is gone. Its socket is this thread's alone."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, lifeline: socket.socket, directory: str
    ) -> None:
        self.inbox: SimpleQueue[wire.CoreMessage | WorkerDied] = SimpleQueue()
        self.on_abort: Callable[[Sequence[str]], None] = lambda request_ids: None
        self._lifeline = lifeline
        self._directory = directory
        self._input = context.socket(zmq.PULL)
        self._input.set_hwm(0)
        self._input.bind(address)

    def run(self) -> None:
        try:
            self._pass_on()
        except zmq.ContextTerminated:  # the process ends
            self._input.close(linger=0)
        except Exception:
            logger.exception("the engine's process cannot take what it is sent, and ends")
            end_process(1)

    def _pass_on(self) -> NoReturn:
        poller = zmq.Poller()
        poller.register(self._input, zmq.POLLIN)
        poller.register(self._lifeline, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._lifeline.fileno() in ready:  # nothing more is ever sent this way: it was closed
                _leave(self._directory)
            self._receive()

    def _receive(self) -> None:
        while True:
            try:
                message = wire.decode_core_message(self._input.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            if isinstance(message, wire.AbortRequests):
                self.on_abort(message.request_ids)  # to be seen within the step that computes
            self.inbox.put(message)  # an abort too: the request itself may still be in the inbox


def _build(start: wire.StartCore) -> StartedCore:
    """Start the core that the options describe."""
    # here: the receiving thread runs by now, and the front end's end is seen while this takes its time
    from octavo.engine.resolve import resolve
    from octavo.engine.startup import build_engine_core

    for module in ("resolve", "pooling_config", "speculation"):  # the front end resolves too, and says it
        get_logger(f"octavo.engine.{module}").setLevel(logging.ERROR)
    args = EngineArgs(**start.options)
    args.skip_tokenizer_init = True  # text is the front end's business
    return build_engine_core(resolve(args))


def _ready_note(started: StartedCore) -> wire.CoreReady:
    return wire.CoreReady(
        max_model_len=started.config.model.max_model_len,
        max_kv_tokens=started.max_kv_tokens,
        num_blocks=started.kv_cache_config.num_blocks,
        vocab_size=started.config.model.vocab_size,
    )


def _leave(directory: str) -> NoReturn:
    """End because the front end is gone, which can no longer clean up itself."""
    shutil.rmtree(directory, ignore_errors=True)
    end_process(0)


_FLUSH_TIMEOUT_MS = 1000
