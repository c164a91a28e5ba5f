"""Starting and ending a server: socket first, then the engine, then requests; on a signal, drain and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.config import LOG_LEVELS

from octavo.engine.grammars import warm_up_grammars
from octavo.entrypoints.event_loop import run as run_in_loop
from octavo.entrypoints.openai.adapters import parse_lora_modules
from octavo.entrypoints.openai.app import build_app
from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.entrypoints.openai.state import ServerState
from octavo.entrypoints.openai.stats_log import log_stats_forever
from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM

logger = get_logger(__name__)

_TICK_S = 1.0  # for the date in answers' heads
_WARM_UP_AFTER_S = 1.0
# Clients and proxies keep idle connections for 5 to 60 s; who sends on one just as it is closed here gets no answer.
_IDLE_S = 75
_AFTER_ABORT_S = 3.0  # what aborted requests get to send their last words


def run_server(
    engine: AsyncLLM,
    args: ServerArgs,
    listener: socket.socket,
    model_names: Sequence[str],
    chat_template: str | None,
    on_ready: Callable[[], None],
) -> None:
    """Serve until SIGINT or SIGTERM; the engine and the socket are the caller's to end.

    on_ready: called when requests are taken
    """
    server = ServerState(engine, args, model_names, chat_template)
    try:
        run_in_loop(serve(server, listener, on_ready))
    finally:
        server.close()


async def serve(server: ServerState, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve on the running event loop, until a signal if this is the main thread, or else until cancelled."""
    server.engine.streams.attach()
    await server.adapters.load_at_start(parse_lora_modules(server.args.lora_modules))
    web = WebServer(uvicorn_config(server), server)
    stats = asyncio.create_task(log_stats_forever(server.engine, server.args.stats_interval_s))
    ready = asyncio.create_task(_announce(web, on_ready))
    tasks = [stats, ready]
    if server.engine.model_config.pooling is None:
        tasks.append(asyncio.create_task(_warm_up_grammars(server.engine)))
    try:
        await web.serve([listener])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _warm_up_grammars(engine: AsyncLLM) -> None:
    """Prepare for the first grammar, so that it need not wait for a process to start; after the start's own rush."""
    await asyncio.sleep(_WARM_UP_AFTER_S)
    try:
        await warm_up_grammars(engine)
    except Exception as error:  # the first grammar will try again, and say it to whom it concerns
        logger.warning("grammars cannot be prepared: %s", error)


class WebServer(uvicorn.Server):
    """uvicorn's server, which sleeps instead of polling, and ends what runs too long after a signal."""

    def __init__(self, config: uvicorn.Config, server: ServerState) -> None:
        super().__init__(config)
        self._server = server
        self._exit, self._hurry = asyncio.Event(), asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Note signals on the event loop; a second one aborts requests, a third waits for nothing. They do not end the
        process, we do."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        installed = []
        for number in numbers:
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread
                loop.add_signal_handler(number, self.handle_exit, number, None)
                installed.append(number)
        try:
            yield
        finally:
            for number in installed:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.force_exit = self._hurry.is_set()
        if self.should_exit:
            self._hurry.set()
        self.should_exit = True
        self._exit.set()

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter += 10  # on_tick counts tenths of a second
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._exit.wait(), _TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, let requests finish, abort those that take longer than --shutdown-timeout."""
        limit = asyncio.create_task(self._abort_late_requests())
        try:
            await super().shutdown(sockets)
        finally:
            limit.cancel()

    async def _abort_late_requests(self) -> None:
        admission, timeout_s = self._server.runner.admission, self._server.args.shutdown_timeout
        if admission.num_requests:
            text = "the server stops; %d requests get %g s to finish (--shutdown-timeout), a second signal aborts them"
            logger.info(text, admission.num_requests, timeout_s)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), timeout_s)
        if admission.num_requests:
            logger.warning("%d requests are aborted: the server stops", admission.num_requests)
        await self._server.engine.hold(aborts=True)


def uvicorn_config(server: ServerState) -> uvicorn.Config:
    """Return how uvicorn serves this server."""
    args = server.args
    _use_our_log(args.uvicorn_log_level)
    return uvicorn.Config(
        build_app(server),
        http=_http_protocol(args),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # middleware.RequestLog has it
        server_header=False,
        proxy_headers=False,  # they would let any client choose its address in the log
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=int(args.shutdown_timeout + _AFTER_ABORT_S),
        ssl_keyfile=args.ssl_keyfile,
        ssl_certfile=args.ssl_certfile,
        ssl_ca_certs=args.ssl_ca_certs,
        ssl_cert_reqs=args.ssl_cert_reqs,
        ssl_ciphers=args.ssl_ciphers,
        h11_max_incomplete_event_size=args.max_header_bytes,
    )


def _http_protocol(args: ServerArgs) -> Any:
    try:
        import httptools  # noqa: F401  (what the protocol below stands on)
    except ImportError:  # not on this platform: h11 has a limit of its own
        return "h11"
    from octavo.entrypoints.openai.connection import limited_protocol

    return limited_protocol(args)


def _use_our_log(level: str) -> None:
    """Send what uvicorn logs where ours goes."""
    theirs = logging.getLogger("uvicorn.error")
    theirs.handlers = logging.getLogger("octavo").handlers
    theirs.setLevel(LOG_LEVELS[level])
    theirs.propagate = False


async def _announce(web: WebServer, on_ready: Callable[[], None]) -> None:
    while not web.started:
        await asyncio.sleep(0.005)
    on_ready()
