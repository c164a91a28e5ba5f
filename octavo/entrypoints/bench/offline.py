"""What the offline benchmarks share: their engine flags, an engine from them, and the JSON file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.config.engine_args import EngineArgs
from octavo.config.option_flags import add_option_arguments, add_unbuilt_flags, given_options
from octavo.entrypoints.cli.main import Parser

if TYPE_CHECKING:
    from octavo.entrypoints.llm import LLM


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each engine option, folded in the help."""
    add_option_arguments(parser, "engine", "what is not given is chosen by Octavo", EngineArgs)
    add_unbuilt_flags(parser, EngineArgs)
    if isinstance(parser, Parser):
        parser.folded_groups.add("engine")


def engine_args(args: argparse.Namespace) -> EngineArgs:
    """Return the engine's options."""
    return EngineArgs.from_kwargs(**given_options(vars(args), EngineArgs))


def load_llm(args: argparse.Namespace) -> LLM:
    """Load the model that the flags describe."""
    from octavo.entrypoints.llm import LLM

    return LLM.from_engine_args(engine_args(args))


def write_json(path: str | None, record: Mapping[str, Any]) -> None:
    """Write a result where --output-json says, if it says so."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
