"""EngineArgs accepts vLLM's names, refuses what is not built, and names the nearest option for a typo."""

import argparse
import dataclasses

import pytest

from octavo.config import EngineArgs
from octavo.config.engine_args import UNSUPPORTED_OPTIONS
from octavo.errors import ConfigError, UnsupportedError


def test_every_option_has_a_help_text():
    for option in dataclasses.fields(EngineArgs):
        assert option.metadata["help"], option.name


def test_neutral_values_of_unbuilt_options_are_accepted():
    args = EngineArgs.from_kwargs(
        model="m", enable_lora=False, speculative_config=None, runner="auto", quantization=None
    )
    assert args.model == "m"


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("fully_sharded_loras", True, "one worker"),
        ("quantization_config", {"bits": 4}, "checkpoint says"),
        ("profiler_config", {"dir": "x"}, "profiling"),
    ],
)
def test_unbuilt_options_are_refused_with_the_reason(option, value, reason):
    with pytest.raises(UnsupportedError, match=reason) as caught:
        EngineArgs.from_kwargs(**{option: value})
    assert option in str(caught.value)


def test_a_misspelt_option_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"max_model_length.*max_model_len"):
        EngineArgs.from_kwargs(max_model_length=128)


def test_the_class_itself_checks_names_as_scripts_call_it():
    assert EngineArgs("m", lora_dtype="auto", optimization_level=2) == EngineArgs(model="m")
    with pytest.raises(ConfigError, match=r"max_model_length.*max_model_len"):
        EngineArgs(max_model_length=128)
    with pytest.raises(UnsupportedError, match="one worker"):
        EngineArgs(fully_sharded_loras=True)


def test_every_neutral_value_is_accepted():
    for name, (neutral, _) in UNSUPPORTED_OPTIONS.items():
        for value in neutral:
            EngineArgs(**{name: value})


@pytest.mark.parametrize("nothing", [None, {}, [], ""])
def test_nothing_is_accepted_for_what_is_not_built(nothing):
    for name in UNSUPPORTED_OPTIONS:
        assert EngineArgs(**{name: nothing}) == EngineArgs()


def test_former_options_are_refused_with_what_to_do_instead():
    with pytest.raises(ConfigError, match=r"'swap_space'; leave it out"):
        EngineArgs(swap_space=4)
    with pytest.raises(ConfigError, match="'rope_scaling'; use hf_overrides"):
        EngineArgs(rope_scaling={"type": "linear"})


def test_mutable_defaults_are_not_shared():
    EngineArgs().hf_overrides["x"] = 1
    assert EngineArgs().hf_overrides == {}


def test_a_program_of_ones_own_can_have_the_engines_flags():
    """As vLLM's examples do: flags beside one's own, and EngineArgs or keyword arguments from them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--my-flag", type=int)
    assert EngineArgs.add_cli_args(parser) is parser
    parser.set_defaults(model="m")
    args = parser.parse_args(["--max-model-len", "64", "--my-flag", "1", "--no-enable-prefix-caching"])
    expected = EngineArgs(model="m", max_model_len=64, enable_prefix_caching=False)
    assert EngineArgs.from_cli_args(args) == expected
    options = vars(args)
    assert options.pop("my_flag") == 1
    assert EngineArgs.from_kwargs(**options) == expected
