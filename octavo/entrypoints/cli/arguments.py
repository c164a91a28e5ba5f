"""Flags for engine and sampling options, made from tables: EngineArgs' own fields, and SAMPLING_OPTIONS below.

Only flags that were given appear in the parsed namespace, so that defaults live in one place, behind the command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo.config.engine_args import EngineArgs
from octavo.config.option_flags import (
    add_flag,
    add_option_arguments,
    add_unbuilt_flags,
    given_options,
    json_object,
    token_ids,
)


@dataclass(frozen=True)
class SamplingOption:
    """One field of SamplingParams on the command line. parse None: an on/off switch; many: the flag can be repeated."""

    name: str
    parse: Callable[[str], Any] | None
    help: str
    many: bool = False


SAMPLING_OPTIONS: tuple[SamplingOption, ...] = (
    SamplingOption("n", int, "answers per prompt"),
    SamplingOption("max_tokens", int, "most tokens to generate"),
    SamplingOption("min_tokens", int, "tokens before a stop is possible"),
    SamplingOption("temperature", float, "0: always the likeliest token; 1: as the model says; higher: more random"),
    SamplingOption("top_p", float, "keep the likeliest tokens whose probabilities reach this sum"),
    SamplingOption("top_k", int, "keep this many of the likeliest tokens; 0: all"),
    SamplingOption("min_p", float, "keep tokens at least this likely, relative to the likeliest"),
    SamplingOption("seed", int, "same seed, same answer"),
    SamplingOption("presence_penalty", float, "lower tokens that were generated before, -2 to 2"),
    SamplingOption("frequency_penalty", float, "the same, per occurrence, -2 to 2"),
    SamplingOption("repetition_penalty", float, "divide the logits of tokens in prompt and answer; 1: off"),
    SamplingOption("stop", str, "end before this text; can be repeated", many=True),
    SamplingOption("stop_token_ids", token_ids, "end at any of these token ids, separated by commas"),
    SamplingOption("bad_words", str, "never generate this text; can be repeated", many=True),
    SamplingOption("allowed_token_ids", token_ids, "generate only these token ids, separated by commas"),
    SamplingOption("logit_bias", json_object, "JSON object, token id to number added to its logit"),
    SamplingOption("ignore_eos", None, "go on after the end-of-sequence token"),
    SamplingOption("include_stop_str_in_output", None, "keep the stop text in the answer"),
    SamplingOption("skip_special_tokens", None, "leave special tokens out of the text"),
    SamplingOption("spaces_between_special_tokens", None, "put spaces between special tokens"),
    SamplingOption("detokenize", None, "turn token ids into text"),
    SamplingOption("logprobs", int, "log-probabilities of this many candidates per generated token; -1: all"),
    SamplingOption("prompt_logprobs", int, "the same for each prompt token"),
    SamplingOption("logprob_token_ids", token_ids, "log-probabilities of exactly these token ids"),
    SamplingOption("repetition_detection", json_object, "JSON object: max_pattern_size, min_pattern_size, min_count"),
    SamplingOption("thinking_token_budget", int, "most tokens of reasoning, whose end is then forced; -1: no limit"),
    SamplingOption(
        "structured_outputs", json_object, "JSON object: one of json, regex, choice, grammar, json_object, …"
    ),
    SamplingOption("extra_args", json_object, "JSON object for custom logits processors"),
)


_SAMPLING_NAMES = frozenset(option.name for option in SAMPLING_OPTIONS)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that decide how much is said on standard error."""
    parser.add_argument("--quiet", action="store_true", help="no line with the number of tokens and the speed")
    parser.add_argument("--verbose", action="store_true", help="log what the engine decides and why")


def add_sampling_arguments(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """Add a flag for each sampling option; max_tokens is this command's default, named in the help."""
    group = parser.add_argument_group("sampling", "unless given, the model's generation config decides")
    for option in SAMPLING_OPTIONS:
        text = f"{option.help} (default: {max_tokens})" if option.name == "max_tokens" else option.help
        add_flag(group, option.name, option.parse, text, "append" if option.many else None)


def given_sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling options that were given, by SamplingParams field name."""
    given = vars(args)
    return {option.name: given[option.name] for option in SAMPLING_OPTIONS if option.name in given}


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each EngineArgs field; --seed is the request's (the engine's only serves requests without one)."""
    add_option_arguments(parser, "engine", "what is not given is chosen by Octavo", EngineArgs, _SAMPLING_NAMES)
    add_unbuilt_flags(parser, EngineArgs)


def given_engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the engine options that were given, by EngineArgs field name."""
    return given_options(vars(args), EngineArgs, _SAMPLING_NAMES)
