"""Flags made from tables: complete, typed, and silent about what was not given."""

from __future__ import annotations

import argparse
import dataclasses

import msgspec
import pytest

from octavo.config.engine_args import UNSUPPORTED_OPTIONS, EngineArgs
from octavo.entrypoints.cli.arguments import (
    SAMPLING_OPTIONS,
    add_engine_arguments,
    add_sampling_arguments,
    given_engine_options,
    given_sampling_options,
)
from octavo.errors import UnsupportedError
from octavo.types.sampling_params import UNSUPPORTED_FIELDS, SamplingParams

# Fields that have no flag: the command decides them, another flag of the engine covers them, or they are internal.
NOT_ON_THE_COMMAND_LINE = {
    "output_kind",
    "stream_interval",
    "flat_logprobs",
    "skip_reading_prefix_cache",
    "skip_clone",
    *UNSUPPORTED_FIELDS,
}


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_sampling_arguments(parser, 256)
    add_engine_arguments(parser)
    return parser.parse_args(arguments)


def test_every_sampling_parameter_has_a_flag_or_a_reason_not_to():
    fields = {field.name for field in msgspec.structs.fields(SamplingParams) if not field.name.startswith("_")}
    flags = {option.name for option in SAMPLING_OPTIONS}
    assert flags | NOT_ON_THE_COMMAND_LINE == fields
    assert not flags & NOT_ON_THE_COMMAND_LINE


def test_every_engine_option_has_a_flag():
    parser = argparse.ArgumentParser()
    add_sampling_arguments(parser, 256)
    add_engine_arguments(parser)
    flags = {action.dest for action in parser._actions}
    assert {field.name for field in dataclasses.fields(EngineArgs) if field.metadata["in_cli"]} <= flags
    assert {"worker_cls", "logits_processors"} <= flags  # classes, which a command line names


@pytest.mark.parametrize("name", [name for name, (neutral, _) in UNSUPPORTED_OPTIONS.items() if neutral == (None,)])
def test_options_that_are_not_built_are_refused_with_their_reason(name: str):
    given = given_engine_options(parse("--" + name.replace("_", "-"), "something"))
    with pytest.raises(UnsupportedError, match=name):
        EngineArgs.from_kwargs(**given)


def test_nothing_given_is_nothing_passed_on():
    args = parse()
    assert given_sampling_options(args) == {}
    assert given_engine_options(args) == {}


def test_engine_options_are_parsed_by_their_type():
    args = parse(
        *("--model", "m", "--block-size", "32", "--watermark", "0.5", "--no-enable-prefix-caching"),
        *("--max-model-len", "8k", "--hf-overrides", '{"rope_theta": 1.0}', "--enforce-eager"),
    )
    assert given_engine_options(args) == {
        "model": "m",
        "block_size": 32,
        "watermark": 0.5,
        "enable_prefix_caching": False,
        "max_model_len": "8k",
        "hf_overrides": {"rope_theta": 1.0},
        "enforce_eager": True,
    }
    assert given_engine_options(parse("--max-model-len", "-1")) == {"max_model_len": -1}


def test_given_sampling_options_make_sampling_params():
    args = parse(
        *("--temperature", "0.5", "--stop", "a,b", "--stop", "c", "--stop-token-ids", "1,2", "--ignore-eos"),
        *("--logit-bias", '{"7": -3}', "--no-skip-special-tokens", "--seed", "9"),
    )
    params = SamplingParams(**given_sampling_options(args))
    assert params.temperature == 0.5 and params.stop == ["a,b", "c"] and params.stop_token_ids == [1, 2]
    assert params.ignore_eos and not params.skip_special_tokens and params.seed == 9
    assert params.logit_bias == {7: -3.0}


def test_the_seed_is_the_requests_and_not_the_engines():
    args = parse("--seed", "3")
    assert given_sampling_options(args) == {"seed": 3} and given_engine_options(args) == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--logit-bias", "[1]"),
        ("--logit-bias", "{"),
        ("--stop-token-ids", "1,x"),
        ("--dtype", "float8"),
        ("--n", "1.5"),
    ],
)
def test_malformed_values_are_refused_by_name(arguments):
    with pytest.raises(argparse.ArgumentError) as caught:
        parse(*arguments)
    assert arguments[0] in str(caught.value)
