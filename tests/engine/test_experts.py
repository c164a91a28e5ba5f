"""Mixtures of experts in a whole engine: neighbours, ranks, weight formats, adapters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import MixtralConfig, Qwen3MoeConfig

from octavo import LLM, SamplingParams
from octavo.errors import CheckpointError
from octavo.loader.compact import QuantizedMatrix
from octavo.loader.safetensors_weights import SafetensorsWeights
from octavo.lora.request import LoRARequest
from octavo.quantization.wrappers import quantized
from tests.engine.processes import SMALL, comparable
from tests.lora.adapters import merge, write_adapter
from tests.quantization.test_checkpoints import generate, quantise_folder
from tests.tiny_models import llama_config, write_tiny_model

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
SIZES = {key: value for key, value in llama_config().to_dict().items() if key in Qwen3MoeConfig().to_dict()}
SIZES |= {"architectures": None, "model_type": "qwen3_moe"}
PROMPTS = [{"prompt_token_ids": list(range(5, 5 + length))} for length in (3, 40, 17, 90, 1, 64)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("moe") / "model", Qwen3MoeConfig(**{**SIZES, **EXPERTS})))


def results(llm: LLM, prompts: list[dict[str, list[int]]] = PROMPTS) -> list[object]:
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, logprobs=2)
    return [comparable(output) for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.native_ops
@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}, {"quantization": "int4"}, {"enforce_eager": True}])
def test_neighbours_and_chunks_change_no_bit(model, options):
    together = results(LLM(model, **SMALL, **options))
    alone = LLM(model, **{**SMALL, "max_num_batched_tokens": 2048}, **options)
    assert [results(alone, [prompt])[0] for prompt in PROMPTS] == together


@pytest.mark.native_ops
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)])
def test_worker_processes_share_every_expert_to_the_bit(model, sizes):
    options = dict(zip(("tensor_parallel_size", "pipeline_parallel_size"), sizes, strict=True))
    shared = LLM(model, **SMALL, **options, enable_expert_parallel=True)
    assert results(shared) == results(LLM(model, **SMALL))


@pytest.mark.parametrize("name", ["gptq-4", "awq", "packed-8"])
def test_quantised_experts_run_like_their_float_twins(tmp_path, name):
    folder = write_tiny_model(tmp_path / "model", Qwen3MoeConfig(**{**SIZES, **EXPERTS}))
    twin = quantise_folder(folder, name)
    assert generate(folder, compute="exact") == generate(twin, compute="exact")
    assert generate(folder) != generate(folder, compute="exact"), "activations are rounded"


def test_what_chooses_experts_is_never_rounded(model):
    weights = SafetensorsWeights(Path(model))
    for name, shape, is_rounded in (
        ("model.layers.0.mlp.gate.weight", (6, 64), False),
        ("model.layers.0.mlp.experts.3.gate_proj.weight", (32, 64), True),
    ):
        for method in ("int8", "int4"):
            matrix = quantized(method, weights.get(name, shape), name, False)
            assert isinstance(matrix, QuantizedMatrix) == is_rounded


def test_random_weights_are_enough_to_run(model):
    assert len(results(LLM(model, load_format="dummy", **SMALL))) == len(PROMPTS)


def test_attention_has_room_for_adapters_and_experts_have_none(model, tmp_path):
    adapter = write_adapter(tmp_path / "adapter", Path(model), projections=("q_proj", "k_proj", "v_proj", "o_proj"))
    adapted = LLM(model, enable_lora=True, **SMALL)
    merged = LLM(str(merge(Path(model), adapter, tmp_path / "merged")), **SMALL)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    got, want = (
        [output.outputs[0].token_ids for output in llm.generate(PROMPTS[:3], params, use_tqdm=False, **options)]
        for llm, options in ((adapted, {"lora_request": LoRARequest("one", 1, str(adapter))}), (merged, {}))
    )
    assert got == want
    tensors = load_file(adapter / "adapter_model.safetensors")
    name = "base_model.model.model.layers.0.mlp.experts.0.gate_proj.lora_{}.weight"
    tensors |= {name.format("A"): np.ones((4, 64), np.float32), name.format("B"): np.ones((32, 4), np.float32)}
    save_file(tensors, adapter / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"mlp\.experts\.0\.gate_proj"):
        adapted.generate(PROMPTS[:1], params, use_tqdm=False, lora_request=LoRARequest("two", 2, str(adapter)))


def test_a_config_that_cannot_be_is_refused(tmp_path):
    config = MixtralConfig(**{**SIZES, "model_type": "mixtral"}, num_local_experts=4)
    folder = write_tiny_model(tmp_path / "model", config)
    values = json.loads((folder / "config.json").read_text())
    for changes, message in (
        ({"num_experts_per_tok": 5}, "num_experts_per_tok=5 exceeds the 4 experts"),
        ({"num_local_experts": 0}, "num_local_experts"),
        ({"num_local_experts": 5}, "block_sparse_moe"),
    ):
        (folder / "config.json").write_text(json.dumps({**values, **changes}))
        with pytest.raises(CheckpointError, match=message):
            LLM(str(folder), **SMALL)
