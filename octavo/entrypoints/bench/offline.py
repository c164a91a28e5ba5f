"""What the offline benchmarks share: their engine flags, an engine from them, and the JSON file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.config.engine_args import EngineArgs
from octavo.config.option_flags import add_option_arguments, add_unbuilt_flags, given_options
from octavo.entrypoints.bench.datasets import BenchPrompt
from octavo.entrypoints.cli.main import Parser
from octavo.errors import ConfigError

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


def check_lengths(prompts: Sequence[BenchPrompt], max_model_len: int) -> None:
    """Refuse answers that would be cut short, and what they cost with them. Raises ConfigError."""
    longest = max(prompts, key=lambda prompt: prompt.prompt_len + prompt.output_len)
    if longest.prompt_len + longest.output_len > max_model_len:
        raise ConfigError(
            f"prompts of {longest.prompt_len} and answers of {longest.output_len} tokens are longer than the model's "
            f"context (max_model_len={max_model_len}); lower --input-len or --output-len"
        )


def check_result_file(path: str | Path | None) -> None:
    """Find out before anything is measured whether a result can be written; raises OSError."""
    if path is None:
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    path.open("a", encoding="utf-8").close()
    if is_new:
        path.unlink()


def write_json(path: str | None, record: Mapping[str, Any]) -> None:
    """Write a result where --output-json says, if it says so."""
    if path is not None:
        Path(path).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
