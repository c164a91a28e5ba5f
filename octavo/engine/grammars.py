"""Grammars for a given engine: what its options say of them, and what checks them for its model."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from octavo.config import OctavoConfig, StructuredOutputsConfig
from octavo.errors import ConfigError
from octavo.structured.backend import DEFAULT_BACKEND, check_backend
from octavo.structured.checker import GrammarChecker
from octavo.structured.vocabulary import vocabulary_of
from octavo.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM


def structured_outputs_config(
    options: Mapping[str, Any], reasoning_parser: str | None = None
) -> StructuredOutputsConfig:
    """Decide the options of structured_outputs_config; raises ConfigError naming the one that is wrong.

    reasoning_parser: given as an option of its own, which wins
    """
    values = {name: value for name, value in options.items() if value is not None}
    if reasoning_parser:
        values["reasoning_parser"] = reasoning_parser
    known = {field.name: field.default for field in dataclasses.fields(StructuredOutputsConfig)}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"structured_outputs_config takes {', '.join(known)}, got {name!r}")
        if type(value) is not type(known[name]):
            expected = "text" if isinstance(known[name], str) else "a bool"
            raise ConfigError(f"structured_outputs_config.{name} must be {expected}, got {value!r}")
    if values.get("backend", "auto") == "auto":
        values["backend"] = DEFAULT_BACKEND
    else:
        check_backend(values["backend"])
    return StructuredOutputsConfig(**values)


def make_grammar_checker(config: OctavoConfig, tokenizer: Tokenizer | None) -> GrammarChecker | None:
    """Return what checks the grammars of requests; None where there is no text to check or to make."""
    model = config.model
    if tokenizer is None or model.pooling is not None:
        return None
    return GrammarChecker(
        config.structured_outputs, lambda: vocabulary_of(tokenizer, model.vocab_size, model.eos_token_ids)
    )


async def warm_up_grammars(engine: AsyncLLM) -> None:
    """Start what compiles grammars now instead of with the first request that has one."""
    if engine.grammars is not None:
        await asyncio.get_running_loop().run_in_executor(None, engine.grammars.warm_up)
