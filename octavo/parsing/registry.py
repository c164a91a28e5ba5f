"""Formats by name: those of this package, and the operator's own from a plug-in file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from octavo.errors import ConfigError, UnsupportedError
from octavo.log import get_logger
from octavo.parsing.formats import ToolFormat
from octavo.parsing.reasoning import REASONING_FORMATS, ReasoningFormat
from octavo.parsing.template_signs import reasoning_name_for, tool_name_for
from octavo.parsing.tool_formats import TOOL_FORMATS
from octavo.utils.names import closest_names

logger = get_logger(__name__)

AUTO, NONE = "auto", "none"
Format = TypeVar("Format", ToolFormat, ReasoningFormat)
# Names of vLLM 0.32 for formats that are not declared here.
_UNBUILT_TOOLS = frozenset({"hf", "muse_glimmer", "inkling"})
_UNBUILT_REASONING = _UNBUILT_TOOLS | {"minicpmv"}

_loaded_plugins: set[Path] = set()
_registered: list[str] = []  # names, in the order in which plug-ins gave them


def register_tool_format(tool_format: ToolFormat) -> None:
    """Add a format under its name, or replace the one of that name; for plug-ins."""
    TOOL_FORMATS[tool_format.name] = tool_format
    _registered.append(tool_format.name)


def register_reasoning_format(reasoning: ReasoningFormat) -> None:
    """Add a format under its name, or replace the one of that name; for plug-ins."""
    REASONING_FORMATS[reasoning.name] = reasoning
    _registered.append(reasoning.name)


def resolve_tool_parser(name: str | None, chat_template: str | None = None) -> ToolFormat | None:
    """Return the tool format of a name; with "auto" the one that the chat template describes, None if it is unknown.

    None, "" and "none" stand for none. Raises ConfigError for an unknown name, UnsupportedError for one of vLLM's that
    is not built.
    """
    return _resolve("tool-call-parser", name, TOOL_FORMATS, _UNBUILT_TOOLS, tool_name_for(chat_template or ""))


def resolve_reasoning_parser(name: str | None, chat_template: str | None = None) -> ReasoningFormat | None:
    """Return the reasoning format of a name, as `resolve_tool_parser` does for calls."""
    by_template = reasoning_name_for(chat_template or "")
    return _resolve("reasoning-parser", name, REASONING_FORMATS, _UNBUILT_REASONING, by_template)


def _resolve(
    option: str, name: str | None, formats: Mapping[str, Format], unbuilt: frozenset[str], by_template: str | None
) -> Format | None:
    if name == AUTO:
        _log_choice(option, by_template or NONE)
        name = by_template
    if not name or name == NONE:
        return None
    if name in formats:
        return formats[name]
    choices = f'"{AUTO}", "{NONE}", {", ".join(sorted(formats))}; others can come from a plug-in'
    if name in unbuilt:
        raise UnsupportedError(f"--{option} {name}: this format is not built; there are {choices}")
    raise ConfigError(f"--{option} {name!r}: expected one of {choices}{closest_names(name, formats)}")


@lru_cache(maxsize=64)
def _log_choice(option: str, name: str) -> None:
    """Log what was chosen, once: the engine and its server both ask."""
    logger.info("%s: %s (from the chat template)", option, name)


def load_plugin(path: str | Path) -> None:
    """Run a Python file that the operator names, once; it registers formats (`register_tool_format` and so on).

    It runs with the server's rights, so its name never comes from a request. Raises ConfigError when the file is
    missing, does not run, or registers nothing.
    """
    file = Path(path).expanduser().resolve()
    if file in _loaded_plugins:
        return
    if not file.is_file():
        raise ConfigError(f"parser plug-in {file}: no such file")
    num_before = len(_registered)
    module_name = f"octavo_parser_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"parser plug-in {file}: expected a Python file (*.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ConfigError(f"parser plug-in {file}: {type(error).__name__}: {error}") from error
    if len(_registered) == num_before:
        raise ConfigError(
            f"parser plug-in {file} registers nothing: it should call octavo.parsing.registry.register_tool_format or "
            "register_reasoning_format"
        )
    _loaded_plugins.add(file)
