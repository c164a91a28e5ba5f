"""Transformers as the oracle: greedy tokens and logits of the same dequantised weights, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM


class Continuation(NamedTuple):
    """Greedy tokens, and how far the best logit was ahead of the second at each."""

    token_ids: list[int]
    margins: list[float]


class TransformersReference:
    """One GGUF file, dequantised by Transformers."""

    def __init__(self, gguf: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()

    @torch.inference_mode()
    def continue_greedily(self, prompt: list[int], num_tokens: int) -> Continuation:
        """Generate `num_tokens` tokens, end-of-sequence ignored; ties to the lowest id."""
        tokens, margins, cache = [], [], None
        step = torch.tensor([prompt])
        for _ in range(num_tokens):
            result = self.model(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = result.past_key_values
            best = torch.topk(result.logits[0, -1], 2)
            margins.append(float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
            step = torch.tensor([[tokens[-1]]])
        return Continuation(tokens, margins)
