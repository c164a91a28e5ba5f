"""Sliding windows below, at and past their border, decoded token by token with the left pages given up."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import Gemma3TextConfig

from octavo.types.kv_spec import FullAttentionSpec, SlidingWindowSpec
from tests.models.harness import TINY, PagedRun, available_ops, build, random_model, transformers_logits


@pytest.mark.parametrize("window", [1, 7, 16, 20])
@pytest.mark.parametrize("prompt_len", [6, 15, 16, 17, 80])
def test_decoding_past_the_window_matches_transformers_at_every_step(window: int, prompt_len: int) -> None:
    layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    model = random_model(Gemma3TextConfig(**TINY, head_dim=16, sliding_window=window, layer_types=layer_types))
    token_ids = np.random.default_rng(prompt_len).integers(0, 97, prompt_len + 20).tolist()
    expected = transformers_logits(model, token_ids)
    for ops in available_ops():
        ours = build(model, ops)
        run = PagedRun(ours, ops, block_size=8)
        logits = run.run(token_ids, [prompt_len] + [1] * 20)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
        for name, spec in run.specs.items():
            held = sum(1 for block_id in run.sequences["row"][name].block_ids if block_id)
            if isinstance(spec, SlidingWindowSpec):
                assert held <= (window + 8 - 2) // 8 + 1
            else:
                assert isinstance(spec, FullAttentionSpec) and held == -(-len(token_ids) // 8)
