"""Serve a model over HTTP: OpenAI's API with vLLM's additions.

MODEL is a catalog name, a folder, a .gguf file or a hub id. Engine flags are those of `octavo generate`.
--config FILE gives flags as YAML, one `name: value` a line; flags on the command line win.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo import envs
from octavo.config.engine_args import EngineArgs
from octavo.config.option_flags import add_option_arguments, add_unbuilt_flags, given_options
from octavo.entrypoints.cli.main import Parser
from octavo.entrypoints.openai.server_args import ServerArgs
from octavo.errors import ConfigError
from octavo.utils.interrupts import exit_at_sigterm

USAGE = "octavo serve [MODEL] [options]"

# vLLM's names of options that have another one here
_ALIASES = {"--disable-uvicorn-access-log": "disable_access_log", "--disable-fastapi-docs": "disable_docs"}
_COUNT_ALIASES = {"--h11-max-incomplete-event-size": "max_header_bytes", "--h11-max-header-count": "max_header_count"}
_OWN_FLAGS = ("served_model_name",)  # EngineArgs takes one name, a server several
_TAKE_SEVERAL = ("served_model_name", "api_key", "lora_modules")
# known to EngineArgs by name, and built here: limits on waiting requests, the log, sleep (needs no mode of its own)
_FROM_SERVER = ("max_num_queued_reqs", "max_num_queued_tokens", "enable_sleep_mode", "enable_log_requests")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", default=argparse.SUPPRESS, help="the model to serve")
    parser.add_argument("--config", action=_ReadConfig, metavar="FILE", help="YAML file of flags")
    parser.add_argument(
        "--served-model-name", nargs="+", metavar="NAME", default=argparse.SUPPRESS, help="names shown in the API"
    )
    parser.add_argument(
        "--lora-modules",
        nargs="+",
        action="extend",
        metavar="NAME=PATH",
        default=argparse.SUPPRESS,
        help='LoRA adapters to serve (needs --enable-lora); also JSON {"name": ..., "path": ...}',
    )
    parser.add_argument(
        "--api-key",
        nargs="+",
        action="extend",
        metavar="KEY",
        default=argparse.SUPPRESS,
        help="keys, one of which requests must carry (OCTAVO_API_KEY)",
    )
    add_option_arguments(parser, "server", "how requests come in", ServerArgs, ("lora_modules", "api_key"))
    for flag, name in _ALIASES.items():
        parser.add_argument(flag, dest=name, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for flag, name in _COUNT_ALIASES.items():
        parser.add_argument(flag, dest=name, type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add_option_arguments(parser, "engine", "what is not given is chosen by Octavo", EngineArgs, _OWN_FLAGS)
    add_unbuilt_flags(parser, EngineArgs, ServerArgs)
    if isinstance(parser, Parser):
        parser.folded_groups.add("engine")


def run(args: argparse.Namespace) -> int:
    given = {**(args.config or {}), **{name: value for name, value in vars(args).items() if name != "config"}}
    names = given.pop("served_model_name", [])
    engine_options = given_options(given, EngineArgs, (*_OWN_FLAGS, *_FROM_SERVER))
    if "model_tag" in given:
        if "model" in engine_options and engine_options["model"] != given["model_tag"]:
            raise ConfigError(f"two models are given: {given['model_tag']} and --model {engine_options['model']}")
        engine_options["model"] = given["model_tag"]
    if "model" not in engine_options:
        _refuse_model_among_values(vars(args))
    if not all(names):
        raise ConfigError("served_model_name must not be empty: clients could not name the model")
    if names:
        engine_options["served_model_name"] = names[0]
    engine_args = EngineArgs.from_kwargs(**engine_options)
    server_options = given_options(given, ServerArgs)
    server_options.setdefault("api_key", envs.api_keys())
    server_args = ServerArgs.from_kwargs(**server_options)
    return _serve(engine_args, server_args, names)


def _refuse_model_among_values(given: Mapping[str, Any]) -> None:
    """Refuse flags of several values where no model is named: the model may have been meant by the last of them."""
    for name in _TAKE_SEVERAL:
        if len(given.get(name, ())) > 1:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"no model is named, unless {flag} took its name: give it before {flag}, or as --model")


def _serve(engine_args: EngineArgs, server_args: ServerArgs, names: Sequence[str]) -> int:
    from octavo.entrypoints.openai.launch import launch

    exit_at_sigterm()  # until the server takes signals itself
    launch(engine_args, server_args, names)
    return 0


class _ReadConfig(argparse.Action):
    """Parses a file's flags like the command line's, into a dict of its own: those of the command line win."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.exit_on_error = False  # raise instead: the error is the file's
        try:
            found, unknown = parser.parse_known_args(_as_arguments(_read_yaml(Path(values))))
        except (ConfigError, argparse.ArgumentError) as error:
            parser.error(f"--config {values}: {error}")
        finally:
            parser.exit_on_error = True
        parser.refuse(unknown, f"--config {values}: ")
        namespace.config = vars(found)


def _read_yaml(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise ConfigError(f"not YAML: {error.problem}{f' in line {mark.line + 1}' if mark else ''}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read it: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ConfigError(f"it must hold `name: value` lines, got {type(content).__name__}")
    names = [key.value.replace("_", "-") for key, _ in yaml.compose(text, yaml.SafeLoader).value]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"it has {', '.join(twice)} twice; only one can be meant")
    return content


def _as_arguments(options: Mapping[str, Any]) -> list[str]:
    arguments: list[str] = []
    for name, value in options.items():
        name = name.replace("_", "-")
        if name == "config":
            raise ConfigError("it names another config file; put all flags into one")
        if value is True or value is False:
            arguments.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            arguments += _list_arguments(name, value)
        elif value is not None:
            arguments.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return arguments


def _list_arguments(name: str, values: list[Any]) -> list[str]:
    if name == "served-model-name":
        return [f"--{name}", *map(str, values)]
    return [f"--{name}={value}" for value in values]
