"""Options have the declared types or are refused by name: nothing of another type reaches the engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo.config import EngineArgs
from octavo.config.option_types import canonical_types
from octavo.errors import ConfigError, UnsupportedError

FOREIGN = [object(), b"x", {1: 2}, {1}, float("nan"), 10**400, np.array([1, 2]), 1j]


@pytest.mark.parametrize("name", [option.name for option in dataclasses.fields(EngineArgs)])
@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: type(value).__name__)
def test_a_value_of_a_foreign_type_is_refused_with_the_options_name(name, value):
    with pytest.raises(ConfigError, match=f"^{name} must be .*got"):
        canonical_types(EngineArgs(**{name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", None),
        ("seed", True),
        ("seed", "1"),
        ("skip_tokenizer_init", 1),
        ("skip_tokenizer_init", "no"),
        ("enable_prefix_caching", 0),
        ("watermark", None),
        ("watermark", False),
        ("override_generation_config", None),
        ("logits_processors", "module:Class"),
        ("block_size", 16.0),
        ("max_logprobs", None),
    ],
)
def test_a_close_type_is_refused_too(name, value):
    with pytest.raises(ConfigError, match=name):
        canonical_types(EngineArgs(**{name: value}))


def test_numbers_paths_and_sequences_become_the_declared_type():
    wished = EngineArgs(model=Path("a/b"), block_size=np.int64(3), watermark=0, logits_processors=(int,))
    args = canonical_types(wished)
    assert (args.model, args.block_size, args.watermark, args.logits_processors) == ("a/b", 3, 0.0, [int])
    assert type(args.block_size) is int and type(args.watermark) is float


def test_a_dtype_of_torch_means_its_name():
    assert EngineArgs(dtype=torch.bfloat16).dtype == "bfloat16"
    with pytest.raises(ConfigError, match=r"^block_size must be .*got 'float16'"):
        canonical_types(EngineArgs(block_size=torch.float16))


def test_defaults_are_of_the_declared_types():
    assert canonical_types(EngineArgs()) == EngineArgs()


def test_arrays_for_unbuilt_options_are_refused_like_anything_else():
    with pytest.raises(UnsupportedError, match="profiler_config"):
        EngineArgs.from_kwargs(profiler_config=np.array([1, 2]))
