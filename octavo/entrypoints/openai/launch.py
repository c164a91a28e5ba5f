"""From options to a running server. The web framework is imported while the engine process loads its model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from octavo.config.engine_args import EngineArgs
from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.errors import ConfigError


def launch(engine_args: EngineArgs, server_args: ServerArgs, model_names: Sequence[str]) -> None:
    """Start an engine and serve it until SIGINT or SIGTERM; raises what is wrong with the options."""
    chat_template = read_chat_template(server_args.chat_template)
    importing = threading.Thread(target=_import_web_framework, name="octavo-import")
    importing.start()
    from octavo.engine.async_llm import AsyncLLM
    from octavo.entrypoints.openai.run import bind, run_server

    importing.join()
    listener = bind(server_args)
    engine = AsyncLLM.from_engine_args(engine_args)
    try:
        run_server(engine, server_args, listener, model_names, chat_template)
    finally:
        engine.shutdown()
        listener.close()


def read_chat_template(source: str | None) -> str | None:
    """Return the template that --chat-template means: Jinja source, or what its file holds."""
    if source is None or "{{" in source or "{%" in source:
        return source
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--chat-template: {source!r} is neither Jinja source nor a readable file: {error}"
        ) from error


def _import_web_framework() -> None:
    import octavo.entrypoints.openai.run  # noqa: F401
