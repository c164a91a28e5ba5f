"""One of several server processes: its own port end, its own event loop; the engine is the hub's, in the parent."""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from octavo.config.engine_args import EngineArgs
from octavo.engine.core_messages import StartFailed
from octavo.engine.hub_messages import Welcome, decode_from_hub, encode
from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.log import get_logger
from octavo.types.raised_error import error_as_data
from octavo.utils.frames import receive_frame, send_frame
from octavo.utils.processes import end_process

PROGRAM = "from octavo.entrypoints.openai.server_process import main; main(*arguments)"
logger = get_logger(__name__)


class ServerOrders(msgspec.Struct):
    """What a server process gets first. engine_options, server_options: the fields of EngineArgs and ServerArgs"""

    engine_options: Mapping[str, Any]
    server_options: Mapping[str, Any]
    model_names: list[str]
    chat_template: str | None


def main(hub_fd: int, listener_fd: int) -> NoReturn:
    """Serve until SIGTERM, or until the parent is gone; entry point of the process."""
    connection = socket.socket(fileno=hub_fd)
    listener = socket.socket(fileno=listener_fd)
    try:
        orders = msgspec.msgpack.decode(receive_frame(connection), type=ServerOrders)
        _serve(orders, connection, listener)
    except EOFError:  # the parent is gone
        end_process(1)
    except Exception as error:
        logger.debug("the server process could not start", exc_info=True)
        connection.setblocking(True)
        send_frame(connection, encode(StartFailed(error_as_data(error))))
        end_process(1)
    end_process(0)


def _serve(orders: ServerOrders, connection: socket.socket, listener: socket.socket) -> None:
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.grammars import make_grammar_checker
    from octavo.engine.hub_client import HubClient
    from octavo.engine.process_start import StartedEngine
    from octavo.engine.resolve import resolve
    from octavo.entrypoints.openai.launch import check_parsers
    from octavo.entrypoints.openai.run import run_server

    get_logger("octavo.engine.resolve").setLevel(logging.ERROR)  # the parent resolves too, and says it
    engine_args, server_args = EngineArgs(**orders.engine_options), ServerArgs(**orders.server_options)
    check_parsers(engine_args, server_args)
    resolved = resolve(engine_args)
    grammars = make_grammar_checker(resolved.config, resolved.tokenizer)
    welcome = decode_from_hub(receive_frame(connection))
    assert isinstance(welcome, Welcome)
    connect = functools.partial(HubClient, connection, welcome, lambda: end_process(1))
    engine = AsyncLLM(StartedEngine.of(resolved, welcome.limits), grammars, connect)
    client = engine.engine_core
    assert isinstance(client, HubClient)
    run_server(engine, server_args, listener, orders.model_names, orders.chat_template, client.tell_ready)
    engine.shutdown()
