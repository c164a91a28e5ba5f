"""A real GGUF model through the loader, against Transformers' own reading of the same file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from octavo.config import LoadConfig
from octavo.loader.catalog import pull
from octavo.loader.resolve import open_checkpoint
from octavo.models.registry import build_model
from octavo.quantization.open import open_model_weights
from tests.models.harness import PagedRun, available_ops, transformers_logits

# "The lighthouse keeper counted the ships every evening and wrote the number into a thick blue book. On the first of
# March there were 13 of them, and the wind came from the"
PROMPT = (
    *(504, 33059, 40061, 17288, 260, 7761, 897, 9053, 284, 4150, 260, 1230, 618, 253, 4943, 4461, 1863, 30, 1985, 260),
    *(808, 282, 3903, 665, 592, 216, 33, 35, 282, 601, 28, 284, 260, 2251, 2422, 429, 260),
)


@pytest.mark.model
def test_smollm2_logits_match_transformers_on_a_real_prompt() -> None:
    path = pull("smollm2-135m-instruct")
    expected_model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    expected = transformers_logits(expected_model.eval(), PROMPT)

    load_config = LoadConfig(exact=True)
    checkpoint = open_checkpoint(str(path), load_config)
    for ops in available_ops():
        model = build_model(checkpoint.config, open_model_weights(checkpoint, load_config), ops, 64)
        logits = PagedRun(model, ops, block_size=16).run(PROMPT, [10, 1, 26])
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-3)
