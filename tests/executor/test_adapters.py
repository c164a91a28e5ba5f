"""Adapters in engines of several workers: the same bits as with one."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Olmo2Config, Phi3Config

from octavo import LLM, SamplingParams
from octavo.errors import CheckpointError
from octavo.lora.request import LoRARequest
from tests.lora.test_engine import PROMPTS, SMALL, results
from tests.lora.test_peft import write_peft
from tests.tiny_models import gemma3_config, llama_config, write_tiny_model

PARAMS = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.8, seed=3, logprobs=2, prompt_logprobs=0)
EVERYTHING = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"]
SIZES = llama_config().to_dict()
SAME = {
    key: SIZES[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "pad_token_id")
}

pytestmark = [pytest.mark.native_ops, pytest.mark.usefixtures("meeting_folder")]


@pytest.mark.parametrize(
    ("config", "modules", "options", "lora_dtype"),
    [
        (llama_config(tie_word_embeddings=False), EVERYTHING, {"tensor_parallel_size": 3}, "auto"),
        (gemma3_config(), EVERYTHING, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "auto"),
        (
            Phi3Config(**SAME, num_attention_heads=4, num_key_value_heads=2),
            "all-linear",
            {"tensor_parallel_size": 3},
            "int8",
        ),
        (
            Olmo2Config(**SAME, num_attention_heads=4, num_key_value_heads=2),
            EVERYTHING,
            {"tensor_parallel_size": 2},
            "bfloat16",
        ),
    ],
    ids=["uneven heads", "tied, in stages", "fused, 8 bits", "norms over all heads"],
)
def test_several_workers_compute_adapters_to_the_last_bit(config, modules, options, lora_dtype, tmp_path):
    model = write_tiny_model(tmp_path / "model", config)
    requests: list[Any] = [None]
    for number in range(2):
        write_peft(model, tmp_path / str(number), seed=number, target_modules=modules, r=3 + 4 * number)
        requests.append(LoRARequest(f"a{number}", number + 1, str(tmp_path / str(number))))
    loras = {"enable_lora": True, "max_loras": 2, "lora_dtype": lora_dtype}
    expected = results(LLM(str(model), **SMALL, **loras), PROMPTS, requests * 2, PARAMS)
    assert expected[0] != expected[3] and len({str(one) for one in expected}) == 6
    parallel = LLM(str(model), **SMALL, **loras, **options)
    try:
        assert results(parallel, PROMPTS, requests * 2, PARAMS) == expected
        write_peft(write_tiny_model(tmp_path / "other", llama_config(hidden_size=96)), tmp_path / "bad", r=2)
        with pytest.raises(CheckpointError, match=r"96|can have one"):
            results(parallel, PROMPTS[:1], LoRARequest("bad", 9, str(tmp_path / "bad")))
        assert results(parallel, PROMPTS[:1], requests[:1], PARAMS) == expected[:1]
    finally:
        parallel.llm_engine.shutdown()
