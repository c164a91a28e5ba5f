"""Every architecture against Transformers, on tiny random models: logits, chunked prompts, batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from transformers import (
    BloomConfig,
    Dots1Config,
    Gemma2Config,
    Gemma3TextConfig,
    Glm4MoeConfig,
    GPT2Config,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    GraniteMoeSharedConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    MptConfig,
    Olmo2Config,
    OlmoeConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
    Starcoder2Config,
)

from octavo.ops.interface import Ops
from tests.models.harness import TINY, PagedRun, available_ops, build, random_chunks, random_model, transformers_logits

NUM_TOKENS = 61
SLIDING = {"sliding_window": 13}  # no multiple of the harness's blocks of 8, shorter than the prompt


def _rope(rope_type: str, **values: Any) -> dict[str, Any]:
    return {"rope_type": rope_type, "rope_theta": 1000.0, **values}


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
DEEPSEEK_EXPERTS = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
}


CONFIGS: Mapping[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**TINY),
    "llama-biases": lambda: LlamaConfig(
        **TINY, attention_bias=True, mlp_bias=True, head_dim=24, tie_word_embeddings=True, hidden_act="gelu"
    ),
    "mistral": lambda: MistralConfig(**TINY, sliding_window=None),
    "mistral-sliding": lambda: MistralConfig(**TINY, **SLIDING),
    "qwen2": lambda: Qwen2Config(**TINY),
    "qwen2-sliding": lambda: Qwen2Config(**TINY, **SLIDING, use_sliding_window=True, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**TINY, head_dim=24),
    "qwen3-sliding": lambda: Qwen3Config(
        **TINY,
        **SLIDING,
        head_dim=16,
        attention_bias=True,
        use_sliding_window=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "gemma2": lambda: Gemma2Config(
        **TINY,
        **SLIDING,
        head_dim=24,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=4.0,
    ),
    "gemma2-uncapped": lambda: Gemma2Config(
        **TINY, **SLIDING, head_dim=16, attn_logit_softcapping=None, final_logit_softcapping=None
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **TINY,
        **SLIDING,
        head_dim=24,
        query_pre_attn_scalar=20,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": _rope("linear", factor=8.0),
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    ),
    "gemma3-softcap": lambda: Gemma3TextConfig(
        **{**TINY, "num_hidden_layers": 4},
        **SLIDING,
        head_dim=16,
        final_logit_softcapping=5.0,
        sliding_window_pattern=2,
    ),
    "phi3": lambda: Phi3Config(**TINY, tie_word_embeddings=True),
    "phi3-longrope": lambda: Phi3Config(
        **TINY,
        **SLIDING,
        original_max_position_embeddings=128,  # = the harness's max_model_len: short factors
        rope_parameters=_rope(
            "longrope",
            partial_rotary_factor=0.75,
            short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            long_factor=[1.0, 2.0, 3.0, 4.0, 6.0, 8.0],
        ),
    ),
    "granite": lambda: GraniteConfig(
        **TINY,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.1,
        logits_scaling=2.5,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
    "mixtral": lambda: MixtralConfig(**TINY, num_local_experts=5, sliding_window=None),
    "mixtral-sliding": lambda: MixtralConfig(**TINY, **SLIDING, num_local_experts=4, num_experts_per_tok=3),
    "qwen2-moe": lambda: Qwen2MoeConfig(**TINY, **EXPERTS, shared_expert_intermediate_size=40),
    "qwen3-moe": lambda: Qwen3MoeConfig(**TINY, **EXPERTS, norm_topk_prob=True, head_dim=24),
    "qwen3-moe-some": lambda: Qwen3MoeConfig(
        **{**TINY, "num_hidden_layers": 4}, **EXPERTS, decoder_sparse_step=2, mlp_only_layers=[3]
    ),
    "olmoe": lambda: OlmoeConfig(**TINY, num_experts=6, num_experts_per_tok=3),
    "granite-moe": lambda: GraniteMoeConfig(
        **TINY, num_local_experts=5, embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.1
    ),
    "granite-moe-shared": lambda: GraniteMoeSharedConfig(**TINY, num_local_experts=5, shared_intermediate_size=40),
    "glm4-moe": lambda: Glm4MoeConfig(
        **TINY,
        **DEEPSEEK_EXPERTS,
        attention_bias=True,
        use_qk_norm=True,
        norm_topk_prob=True,
        first_k_dense_replace=1,
    ),
    "glm4-moe-options": lambda: Glm4MoeConfig(**TINY, **DEEPSEEK_EXPERTS, norm_topk_prob=False),
    "dots1": lambda: Dots1Config(
        **TINY, **SLIDING, **DEEPSEEK_EXPERTS, first_k_dense_replace=0, max_window_layers=1, norm_topk_prob=True
    ),
    "gpt-oss": lambda: GptOssConfig(
        **TINY,
        **SLIDING,
        head_dim=24,
        num_local_experts=6,
        num_experts_per_tok=3,
        rope_parameters=_rope("yarn", factor=8.0, original_max_position_embeddings=32, truncate=False),
    ),
    "gpt-oss-plain": lambda: GptOssConfig(
        **TINY,
        **SLIDING,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=1,
        attention_bias=False,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    ),
    "bloom": lambda: BloomConfig(vocab_size=97, hidden_size=72, n_layer=3, n_head=6, seq_length=128),
    "mpt": lambda: MptConfig(vocab_size=97, d_model=64, n_heads=4, n_layers=3, max_seq_len=128, eos_token_id=2),
    "mpt-options": lambda: MptConfig(
        vocab_size=97,
        d_model=72,
        n_heads=6,  # no power of two
        n_layers=2,
        max_seq_len=128,
        eos_token_id=2,
        attn_config={"softmax_scale": 0.3},  # Transformers reads no alibi_bias_max
    ),
    "olmo2": lambda: Olmo2Config(**TINY),
    "smollm3": lambda: SmolLM3Config(**TINY, no_rope_layer_interval=2, tie_word_embeddings=True),
    "smollm3-sliding": lambda: SmolLM3Config(**TINY, **SLIDING, no_rope_layers=[1, 0, 1], use_sliding_window=True),
    "starcoder2": lambda: Starcoder2Config(**TINY, sliding_window=None),
    "starcoder2-sliding": lambda: Starcoder2Config(**TINY, **SLIDING, use_bias=False, tie_word_embeddings=False),
    "gpt2": lambda: GPT2Config(vocab_size=97, n_positions=128, n_embd=64, n_layer=3, n_head=4, eos_token_id=2),
    "gpt2-options": lambda: GPT2Config(
        vocab_size=97,
        n_positions=128,
        n_embd=64,
        n_layer=2,
        n_head=2,
        n_inner=80,
        eos_token_id=2,
        activation_function="relu",
        scale_attn_by_inverse_layer_idx=True,
        tie_word_embeddings=False,
    ),
}


@pytest.fixture(scope="module", params=list(CONFIGS))
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return random_model(CONFIGS[request.param]())


@pytest.fixture(scope="module", params=available_ops(), ids=lambda ops: ops.name)
def ops(request: pytest.FixtureRequest) -> Ops:
    return request.param


def test_teacher_forced_logits_match_transformers(model: PreTrainedModel, ops: Ops) -> None:
    token_ids = np.random.default_rng(0).integers(0, 97, NUM_TOKENS).tolist()
    expected = transformers_logits(model, token_ids)
    logits = PagedRun(build(model, ops), ops).run(token_ids)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_random_chunks_give_the_logits_of_the_whole_prompt(model: PreTrainedModel, ops: Ops) -> None:
    rng = np.random.default_rng(1)
    token_ids = rng.integers(0, 97, NUM_TOKENS).tolist()
    ours = build(model, ops)
    expected = transformers_logits(model, token_ids)
    for seed, largest in enumerate((1, 9, 30)):
        chunks = random_chunks(rng, NUM_TOKENS, largest)
        logits = PagedRun(ours, ops, block_size=(8, 5, 16)[seed], seed=seed).run(token_ids, chunks)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_a_batch_of_requests_in_different_phases_gives_each_its_own_logits(model: PreTrainedModel, ops: Ops) -> None:
    rng = np.random.default_rng(2)
    prompts = {f"request {index}": rng.integers(0, 97, length).tolist() for index, length in enumerate((40, 3, 17, 1))}
    expected = {name: transformers_logits(model, prompt) for name, prompt in prompts.items()}
    run = PagedRun(build(model, ops), ops)
    seen = dict.fromkeys(prompts, 0)
    while any(seen[name] < len(prompt) for name, prompt in prompts.items()):
        step = {}
        for name, prompt in prompts.items():
            chunk = prompt[seen[name] : seen[name] + int(rng.integers(0, 12))]
            if chunk:
                step[name] = chunk
        for name, logits in (run.step(step) if step else {}).items():
            wanted = expected[name][seen[name] : seen[name] + len(step[name])]
            np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4)
            seen[name] += len(step[name])


@pytest.mark.skipif(len(available_ops()) == 1, reason="the native extension is not built")
def test_native_logits_are_bit_identical_however_the_work_is_cut(model: PreTrainedModel) -> None:
    native = available_ops()[1]
    rng = np.random.default_rng(4)
    ours = build(model, native)
    prompts = {name: rng.integers(0, 97, NUM_TOKENS).tolist() for name in ("a", "b", "c")}
    alone = {name: PagedRun(ours, native).run(prompt) for name, prompt in prompts.items()}
    chunked = PagedRun(ours, native, block_size=5, seed=1).run(prompts["a"], random_chunks(rng, NUM_TOKENS, 20))
    np.testing.assert_array_equal(chunked, alone["a"])
    crowd = PagedRun(ours, native, seed=2)
    for start in range(0, NUM_TOKENS, 20):
        together = crowd.step({name: prompt[start : start + 20] for name, prompt in prompts.items()})
        for name, logits in together.items():
            np.testing.assert_array_equal(logits, alone[name][start : start + 20])
