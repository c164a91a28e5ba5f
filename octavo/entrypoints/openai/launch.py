"""From options to a running server. The web framework is imported while the engine process loads its model."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config.engine_args import EngineArgs
from octavo.engine.process_start import StartingProcess
from octavo.entrypoints.openai.listening import bind_all, url_of
from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.errors import CheckpointError, ConfigError, InvalidRequestError, ModelNotFoundError, UnsupportedError
from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.resolve import ResolvedEngine


logger = get_logger(__name__)


def launch(engine_args: EngineArgs, server_args: ServerArgs, model_names: Sequence[str]) -> None:
    """Start an engine and serve it until SIGINT or SIGTERM; raises what is wrong with the options."""
    if server_args.headless:
        if server_args.api_server_count is not None:
            raise ConfigError("--headless serves no HTTP: leave --api-server-count out")
        from octavo.engine.headless import run_headless

        run_headless(engine_args)
        return
    chat_template = read_chat_template(server_args.chat_template)
    check_parsers(engine_args, server_args)
    check_adapters(engine_args, server_args)
    listeners = bind_all(server_args, server_args.api_server_count or 1)
    try:
        if len(listeners) > 1:
            from octavo.entrypoints.openai.server_processes import serve_with_processes

            serve_with_processes(engine_args, server_args, model_names, chat_template, listeners)
        else:
            _serve_here(engine_args, server_args, model_names, chat_template, listeners[0])
    finally:
        for listener in listeners:
            listener.close()
        if server_args.uds is not None:
            Path(server_args.uds).unlink(missing_ok=True)


def _serve_here(
    engine_args: EngineArgs,
    server_args: ServerArgs,
    model_names: Sequence[str],
    chat_template: str | None,
    listener: socket.socket,
) -> None:
    """Serve in this process, which has the engine too."""
    starting = _start_engine(engine_args, server_args)
    from octavo.entrypoints.openai.run import run_server

    engine = starting.result()
    url = url_of(server_args, listener)
    try:
        run_server(engine, server_args, listener, model_names, chat_template, lambda: logger.info("ready at %s", url))
    finally:
        engine.shutdown()


def read_chat_template(source: str | None) -> str | None:
    """Return the template that --chat-template means: Jinja source, or what its file holds; raises ConfigError."""
    if source is None:
        return None
    from octavo.tokenizers.template_source import compile_source

    try:
        template = source if "{{" in source or "{%" in source else Path(source).read_text(encoding="utf-8")
        compile_source(template)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--chat-template: {source!r} is neither Jinja source nor a readable file: {error}"
        ) from error
    except InvalidRequestError as error:
        raise ConfigError(f"--chat-template: {error}") from error
    return template


def check_parsers(engine_args: EngineArgs, server_args: ServerArgs) -> None:
    """Load the operator's formats and refuse names that nobody knows, before a model is loaded."""
    plugins = (server_args.tool_parser_plugin, engine_args.reasoning_parser_plugin)
    names = (server_args.tool_call_parser, engine_args.reasoning_parser or "auto")
    if not any(plugins) and set(names) <= {"auto", "none"}:
        return
    from octavo.entrypoints.answers import choose_formats
    from octavo.parsing.registry import load_plugin

    for path in filter(None, plugins):
        load_plugin(path)
    choose_formats(*names)


def check_adapters(engine_args: EngineArgs, server_args: ServerArgs) -> None:
    """Refuse --lora-modules that no model could take, before one is loaded; raises ConfigError."""
    if not server_args.lora_modules:
        return
    from octavo.engine.adapters import lora_config
    from octavo.entrypoints.openai.adapters import parse_lora_modules
    from octavo.lora.checkpoint import adapter_identity, adapter_shapes

    config = lora_config(engine_args)
    if config is None:
        raise ConfigError("--lora-modules needs --enable-lora")
    for name, path in parse_lora_modules(server_args.lora_modules).items():
        with _of_adapter(name, path):
            adapter_identity(Path(path))
            adapter_shapes(Path(path), config.max_lora_rank)


def check_adapters_fit(model: ResolvedEngine, server_args: ServerArgs) -> None:
    """Refuse --lora-modules that are another model's; reads no matrix. Raises ConfigError."""
    if not server_args.lora_modules:
        return
    from octavo.entrypoints.openai.adapters import parse_lora_modules
    from octavo.lora.checkpoint import adapter_shapes, check_fits
    from octavo.models.adapting import adaptable_modules
    from octavo.models.registry import describe_decoder

    assert model.config.lora is not None, "checked before"
    modules = adaptable_modules(*describe_decoder(model.checkpoint.config))
    for name, path in parse_lora_modules(server_args.lora_modules).items():
        with _of_adapter(name, path):
            check_fits(Path(path), adapter_shapes(Path(path), model.config.lora.max_lora_rank), modules)


@contextmanager
def _of_adapter(name: str, path: str) -> Iterator[None]:
    try:
        yield
    except (CheckpointError, ModelNotFoundError, UnsupportedError) as error:
        raise ConfigError(f"--lora-modules {name}={path}: {error}") from error


def _start_engine(engine_args: EngineArgs, server_args: ServerArgs) -> Future[AsyncLLM]:
    """Start an engine, whose core comes first: its process and this one have as much to import.

    The rest is done on a thread: this one has the web framework to import meanwhile.
    """
    starting = StartingProcess(engine_args)
    future: Future[AsyncLLM] = Future()

    def start() -> None:
        try:
            from octavo.engine.async_llm import AsyncLLM

            check_adapters_fit(starting.resolve(), server_args)
            future.set_result(AsyncLLM.from_starting(starting))
        except BaseException as error:
            starting.close()
            future.set_exception(error)

    # a daemon: on Ctrl-C this process ends without waiting for it, and the engine process with it
    threading.Thread(target=start, name="octavo-start", daemon=True).start()
    return future
