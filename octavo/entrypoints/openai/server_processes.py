"""Several server processes in front of the same engine: this one has the hub and replaces those that die."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import socket
import subprocess
from collections.abc import Sequence

import msgspec

from octavo.config.engine_args import EngineArgs
from octavo.engine.core_messages import options_as_data
from octavo.engine.hub import FrontEnd, Hub
from octavo.engine.llm_engine import metrics_of
from octavo.engine.process_start import StartingProcess
from octavo.engine.supervisor import RecoveryPolicy
from octavo.entrypoints.event_loop import run as run_in_loop
from octavo.entrypoints.openai.launch import check_adapters_fit
from octavo.entrypoints.openai.listening import url_of
from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.entrypoints.openai.server_process import PROGRAM, ServerOrders
from octavo.errors import EngineDeadError
from octavo.log import get_logger
from octavo.types.raised_error import error_from_data
from octavo.utils.frames import send_frame
from octavo.utils.processes import end_child, start_python

logger = get_logger(__name__)

_AFTER_DRAIN_S = 8.0  # what a process gets to end when its requests have had theirs
_EXIT_TIMEOUT_S = 5.0
_PROD_INTERVAL_S = 2.0
_MAX_UNANSWERED = 15


def serve_with_processes(
    engine_args: EngineArgs,
    server_args: ServerArgs,
    model_names: Sequence[str],
    chat_template: str | None,
    listeners: Sequence[socket.socket],
) -> None:
    """Start the engine and a server process for each listener; return when all have ended after a signal.

    Raises ConfigError for options that cannot leave this process, and what is wrong with the others.
    """
    options = msgspec.to_builtins(server_args)
    orders = ServerOrders(options_as_data(engine_args), options, list(model_names), chat_template)
    starting = StartingProcess(dataclasses.replace(engine_args, skip_tokenizer_init=True))
    children: list[ServerChild] = []
    try:
        # they have imports to do meanwhile
        children += [ServerChild(_orders_of(index, orders, len(listeners)), one) for index, one in enumerate(listeners)]
        check_adapters_fit(starting.resolve(), server_args)
        started = starting.wait()
        url = url_of(server_args, listeners[0])
        servers = ServerProcesses(orders, listeners, children, url, server_args.shutdown_timeout)
        metrics = metrics_of(started.engine.config)

        async def run() -> None:
            hub = Hub(started.handle, metrics)
            try:
                await servers.run(hub)
            finally:
                hub.shutdown()

        run_in_loop(run())
    finally:
        for child in children:
            child.kill()
        starting.close()


class ServerChild:
    """A server process. connection: the hub's end"""

    def __init__(self, orders: ServerOrders, listener: socket.socket) -> None:
        self.connection, theirs = socket.socketpair()
        with theirs:
            fds = [theirs.fileno(), listener.fileno()]
            self._process = start_python(
                PROGRAM,
                fds,
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the parent, which then decides
            )
        with contextlib.suppress(ConnectionError):  # it is gone already: its end will be seen
            send_frame(self.connection, msgspec.msgpack.encode(orders))

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self) -> int:
        """Return the exit status of a process that has left the hub."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_EXIT_TIMEOUT_S)
        return self.kill()

    def kill(self) -> int:
        """End it, whatever it does; return its exit status."""
        return end_child(self._process)


class ServerProcesses:
    """Keeps as many server processes as there are listeners, until a signal."""

    def __init__(
        self,
        orders: ServerOrders,
        listeners: Sequence[socket.socket],
        children: list[ServerChild],
        url: str,
        drain_timeout_s: float,
    ) -> None:
        """children: those that start already; replaced ones take their places in the list"""
        self._orders = orders
        self._listeners = listeners
        self._children = children
        self._url = url
        self._drain_timeout_s = drain_timeout_s
        self._is_stopping = False

    async def run(self, hub: Hub) -> None:
        """Serve until SIGINT or SIGTERM. Raises what keeps a process from starting, and EngineDeadError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, number)
        # the first loads what --lora-modules names, and the others are told of it
        first = await self._started(hub, 0)
        others = [await self._started(hub, index) for index in range(1, len(self._children))]
        if not self._is_stopping:
            logger.info("%d server processes, ready at %s", len(self._children), self._url)
        keepers = [asyncio.create_task(self._keep(hub, index, one)) for index, one in enumerate([first, *others])]
        try:
            await asyncio.gather(*keepers)
        finally:
            for keeper in keepers:
                keeper.cancel()

    def _stop(self, number: int) -> None:
        """Let all finish their requests and end; a second signal lets them end at once."""
        self._is_stopping = True
        for listener in self._listeners:
            listener.close()  # theirs too are closed soon: nobody waits for an answer that will not come
        for child in self._children:
            child.signal(number)
        asyncio.get_running_loop().call_later(self._drain_timeout_s + _AFTER_DRAIN_S, self._kill_all)

    def _kill_all(self) -> None:
        for child in self._children:
            child.kill()

    async def _started(self, hub: Hub, index: int) -> FrontEnd:
        """Return a process that serves; raises what kept it from starting."""
        front_end = hub.connect(self._children[index].connection)
        await asyncio.wait([front_end.ready])
        if front_end.error is not None:
            raise error_from_data(front_end.error)
        if front_end.ended.is_set() and not self._is_stopping:
            raise EngineDeadError(f"server process {index} ended while it started")
        return front_end

    async def _end_of(self, index: int, front_end: FrontEnd) -> None:
        """Wait for the end of a process, and end one that is silent: connections wait at its listener.

        What is counted is questions and not time: if all processes were stopped, this one was too.
        """
        end = asyncio.create_task(front_end.ended.wait())
        while not end.done():
            if front_end.is_ready:
                front_end.prod()
            await asyncio.wait([end], timeout=_PROD_INTERVAL_S)
            if front_end.num_unanswered > _MAX_UNANSWERED:
                silent_s = _PROD_INTERVAL_S * _MAX_UNANSWERED
                logger.warning("server process %d has been silent for %g s and is ended", index, silent_s)
                self._children[index].kill()
                await end

    async def _keep(self, hub: Hub, index: int, front_end: FrontEnd) -> None:
        """Replace a process whenever it ends, until the server stops; raises EngineDeadError when that is hopeless."""
        policy, num_failed = RecoveryPolicy(), 0  # starts in a row that came to nothing
        while True:
            await self._end_of(index, front_end)
            status = await asyncio.to_thread(self._children[index].wait)
            reason = f"signal {-status}" if status < 0 else f"exit status {status}"
            num_failed = num_failed + 1 if front_end.ready.cancelled() else 0
            if num_failed <= policy.max_deaths:
                await asyncio.sleep(policy.retry_delay_s * (2**num_failed - 1))
            if self._is_stopping:
                return
            if num_failed > policy.max_deaths:
                raise EngineDeadError(
                    f"server process {index} could not be started {num_failed} times in a row; the last time: "
                    f"{front_end.error.text if front_end.error is not None else reason}"
                )
            logger.warning("server process %d died (%s); another takes its place", index, reason)
            orders = _orders_of(index, self._orders, len(self._children), is_first_start=False)
            self._children[index] = ServerChild(orders, self._listeners[index])
            front_end = hub.connect(self._children[index].connection)


def _orders_of(index: int, orders: ServerOrders, count: int, is_first_start: bool = True) -> ServerOrders:
    """Return what one of `count` processes is to do: what must happen once is the first one's."""
    options = dict(orders.server_options)
    if index or not is_first_start:
        options["lora_modules"] = []
    if index:
        options["stats_interval_s"] = 0.0  # the first writes the lines, about all
    for name in ("max_num_queued_reqs", "max_num_queued_tokens"):
        options[name] = -(-options[name] // count)
    return msgspec.structs.replace(orders, server_options=options)
