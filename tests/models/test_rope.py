"""Every rotary scaling type against Transformers, in both spellings, and the longest sequence that each allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, Phi3Config

from octavo.errors import CheckpointError, UnsupportedError
from octavo.layers.rotary import LongRope, Rope, YarnRope, cos_sin_table
from octavo.loader.hf_config import HFConfig
from octavo.models.registry import build_model, describe
from octavo.models.rope_reading import max_position, read_rope
from octavo.ops.reference import ReferenceOps
from tests.models.harness import (
    TINY,
    ArrayWeights,
    PagedRun,
    build,
    hf_config,
    random_chunks,
    random_model,
    tensors_of,
    transformers_logits,
)

NUM_TOKENS = 120
SHORT, LONG = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0]

# name -> (scaling, max_position_embeddings, longest sequence that the config allows)
SCALINGS: Mapping[str, tuple[dict[str, Any], int, int]] = {
    "default": ({"rope_type": "default"}, 128, 128),
    "linear": ({"rope_type": "linear", "factor": 4.0}, 32, 128),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, 32, 128),
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128, 128),
    "yarn with max_position_embeddings unscaled": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        40,
        128,
    ),
    "yarn without original length": ({"rope_type": "yarn", "factor": 4.0}, 32, 128),
    "yarn attention_factor": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 0.7},
        128,
        128,
    ),
    "yarn mscale": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "mscale": 1.3,
            "mscale_all_dim": 0.6,
        },
        128,
        128,
    ),
    "yarn betas untruncated": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 5.0,
            "beta_slow": 0.3,
            "truncate": False,
        },
        128,
        128,
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        128,
        128,
    ),
    "longrope": (
        {
            "rope_type": "longrope",
            "original_max_position_embeddings": 32,
            "short_factor": SHORT,
            "long_factor": LONG,
        },
        128,
        128,
    ),
    "longrope factor and attention_factor": (
        {
            "rope_type": "longrope",
            "factor": 8.0,
            "attention_factor": 1.4,
            "original_max_position_embeddings": 32,
            "short_factor": SHORT,
            "long_factor": LONG,
        },
        128,
        128,
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_logits_match_transformers_up_to_the_last_position(name: str) -> None:
    scaling, stated, longest = SCALINGS[name]
    config = LlamaConfig(
        **{**TINY, "max_position_embeddings": stated, "rope_parameters": {"rope_theta": 500.0, **scaling}}
    )
    model = random_model(config)
    assert describe(hf_config(model)).max_position == longest
    rng = np.random.default_rng(0)
    token_ids = rng.integers(0, 97, NUM_TOKENS).tolist()
    ours = build(model, ReferenceOps(), max_model_len=NUM_TOKENS)
    logits = PagedRun(ours, ReferenceOps()).run(token_ids, random_chunks(rng, NUM_TOKENS, 30))
    np.testing.assert_allclose(logits, transformers_logits(model, token_ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_short_context_frequencies_with_max_model_len_up_to_the_original_length(name: str) -> None:
    scaling, stated, _ = SCALINGS[name]
    config = LlamaConfig(
        **{**TINY, "max_position_embeddings": stated, "rope_parameters": {"rope_theta": 500.0, **scaling}}
    )
    model = random_model(config)
    token_ids = np.random.default_rng(0).integers(0, 97, 32).tolist()
    logits = PagedRun(build(model, ReferenceOps(), max_model_len=32), ReferenceOps()).run(token_ids)
    np.testing.assert_allclose(logits, transformers_logits(model, token_ids), rtol=0, atol=1e-4)


def test_phi3_long_factors_on_a_partial_rotation_match_transformers() -> None:
    config = Phi3Config(
        **TINY,
        original_max_position_embeddings=32,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.75,
            "short_factor": SHORT[:6],
            "long_factor": LONG[:6],
        },
    )
    model = random_model(config)
    assert describe(hf_config(model)).max_position == TINY["max_position_embeddings"]
    token_ids = np.random.default_rng(0).integers(0, 97, NUM_TOKENS).tolist()
    logits = PagedRun(build(model, ReferenceOps()), ReferenceOps()).run(token_ids)
    np.testing.assert_allclose(logits, transformers_logits(model, token_ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", SCALINGS)
def test_both_spellings_read_alike(name: str) -> None:
    scaling, stated, _ = SCALINGS[name]
    sizes = {"max_position_embeddings": stated}
    old = HFConfig({**sizes, "rope_theta": 500.0, "rope_scaling": scaling})
    older = HFConfig(
        {
            **sizes,
            "rope_theta": 500.0,
            "rope_scaling": {"type": scaling["rope_type"], **{k: v for k, v in scaling.items() if k != "rope_type"}},
        }
    )
    new = HFConfig({**sizes, "rope_parameters": {"rope_theta": 500.0, **scaling}})
    rope = read_rope(new, 16)
    assert read_rope(old, 16) == rope
    assert read_rope(older, 16) == rope


def test_a_config_without_any_rope_keys_takes_the_default_base() -> None:
    config = HFConfig({"max_position_embeddings": 64, "rope_scaling": None})
    assert read_rope(config, 16) == Rope(10_000.0, 16)
    assert read_rope(config, 16, theta=5.0) == Rope(5.0, 16)


def test_su_is_longrope_and_phi3_yarn_too() -> None:
    scaling = {"type": "su", "short_factor": SHORT, "long_factor": LONG}
    values = {"max_position_embeddings": 128, "original_max_position_embeddings": 32, "rope_scaling": scaling}
    rope = read_rope(HFConfig(values), 16)
    assert isinstance(rope, LongRope)
    assert (rope.factor, rope.original_length) == (4.0, 32)
    phi3 = {**TINY, **values, "architectures": ["Phi3ForCausalLM"], "rope_scaling": {**scaling, "type": "yarn"}}
    assert describe(HFConfig(phi3)).max_position == 128


def test_the_original_length_beside_the_section_counts_before_the_one_in_it() -> None:
    scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    values = {"max_position_embeddings": 128, "original_max_position_embeddings": 32, "rope_scaling": scaling}
    rope = read_rope(HFConfig(values), 16)
    assert isinstance(rope, YarnRope)
    assert rope.original_length == 32


def test_max_position_is_not_multiplied_twice_when_linear_names_its_original_length() -> None:
    scaling = {"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 32}
    config = HFConfig({"max_position_embeddings": 128, "rope_scaling": scaling})
    assert max_position(config, read_rope(config, 16)) == 128


@pytest.mark.parametrize(
    ("scaling", "error", "named"),
    [
        ({"rope_type": "spiral"}, UnsupportedError, "spiral"),
        ({"rope_type": "default", "mrope_section": [2, 3, 3]}, UnsupportedError, "mrope_section"),
        ({"rope_type": "linear"}, CheckpointError, "factor"),
        ({"rope_type": "linear", "factor": 0}, CheckpointError, "factor"),
        ({"rope_type": "linear", "factor": "4"}, CheckpointError, "factor"),
        ({"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG[:3]}, CheckpointError, "long_factor"),
        ({"rope_type": "longrope", "long_factor": LONG}, CheckpointError, "short_factor"),
        (
            {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
            CheckpointError,
            "high_freq_factor",
        ),
        ({"rope_type": "default", "partial_rotary_factor": 0.2}, CheckpointError, "partial_rotary_factor"),
        ({"rope_type": "default", "partial_rotary_factor": 1.5}, CheckpointError, "partial_rotary_factor"),
    ],
)
def test_a_scaling_that_cannot_be_honoured_is_refused_by_name(
    scaling: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        read_rope(HFConfig({"max_position_embeddings": 128, "rope_scaling": scaling}), 16)


def test_positions_of_a_million_are_computed_in_one_precision_with_transformers() -> None:
    model = random_model(LlamaConfig(**TINY))
    positions = np.array([0, 1, 4095, 131_071, 999_999])
    table = cos_sin_table(Rope(10_000.0, 16), 1_000_000)[positions]
    cos, sin = model.model.rotary_emb(torch.zeros(1, dtype=torch.float32), torch.tensor(positions)[None])
    np.testing.assert_allclose(table[:, :8], cos[0, :, :8].numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(table[:, 8:], sin[0, :, :8].numpy(), rtol=0, atol=1e-6)


def test_tokens_past_max_model_len_are_refused_by_the_rotation() -> None:
    model = random_model(LlamaConfig(**TINY))
    ours = build_model(hf_config(model), ArrayWeights(tensors_of(model)), ReferenceOps(), max_model_len=10)
    with pytest.raises(ValueError, match=r"positions must be in 0\.\.9"):
        PagedRun(ours, ReferenceOps()).run(list(range(11)))
