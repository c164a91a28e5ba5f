"""Embeddings of all-MiniLM-L6-v2 equal sentence-transformers': Transformers' BERT, the mean of its tokens, normalised.

By default 40 texts; OCTAVO_FULL_PARITY=1 takes 500.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from octavo import LLM
from octavo.loader.catalog import pull
from octavo.ops.select import select_ops

pytestmark = pytest.mark.model

NUM_TEXTS = 500 if os.environ.get("OCTAVO_FULL_PARITY") == "1" else 40
ODD_WORDS = ["naïve", "größer", "日本語", "emoji🙂", "Ωmega", "x" * 120, "don't", "U.S.A.", "3.14", "[MASK]", "\u200b"]


def texts() -> list[str]:
    """Return texts of 1 to about 600 tokens, every second one of a round length."""
    rng = random.Random(7)
    page = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
    words = page.read_text(encoding="utf-8").split() + ODD_WORDS
    lengths = [
        rng.choice([1, 2, 5, 13, 34, 89, 144, 233, 377]) if i % 2 else rng.randint(1, 370) for i in range(NUM_TEXTS)
    ]
    return [" ".join(rng.choice(words) for _ in range(length)) for length in lengths]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("all-minilm-l6-v2")


def embed(llm: LLM, inputs: list[str]) -> np.ndarray:
    return np.array([output.outputs.embedding for output in llm.embed(inputs, use_tqdm=False)], np.float32)


def test_embeddings_have_a_cosine_over_0_9999_and_batches_equal_single_texts(llm: LLM) -> None:
    folder = pull("all-minilm-l6-v2")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    ours = embed(llm, texts())
    for text, vector in zip(texts(), ours, strict=True):
        inputs = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            expected = model(**inputs).last_hidden_state[0].mean(dim=0)
        assert torch.cosine_similarity(torch.tensor(vector), expected, dim=0) > 0.9999
        assert abs(np.linalg.norm(vector) - 1) < 1e-5
    if select_ops().name == "native":  # BLAS does not promise it
        singles = np.concatenate([embed(llm, [text]) for text in texts()[:12]])
        assert np.array_equal(ours[:12], singles)
        assert np.array_equal(ours[::-1], embed(llm, texts()[::-1]))


def test_int8_weights_change_little(llm: LLM) -> None:
    cosines = (embed(llm, texts()[:8]) * embed(LLM("all-minilm-l6-v2", quantization="int8"), texts()[:8])).sum(axis=1)
    assert cosines.min() > 0.99
