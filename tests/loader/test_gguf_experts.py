"""Mixtures of experts in GGUF: every architecture converted from Transformers, read back and computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import MODEL_TENSOR, TENSOR_NAMES
from numpy.typing import NDArray
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.gguf_config import gguf_config
from octavo.loader.gguf_file import GGUFFile
from octavo.loader.gguf_weights import GGUFWeights
from octavo.loader.hf_config import HFConfig
from octavo.models.registry import ARCHITECTURES, build_model
from tests.loader.gguf_export import common_metadata, granite_factors, head_size, permuted, yarn
from tests.loader.test_gguf_models import assert_alike
from tests.models.harness import TINY, PagedRun, available_ops, random_model, transformers_logits

Tensor = NDArray[np.float32]
Write = Callable[[gguf.GGUFWriter, PretrainedConfig], None]
TOKENS = np.random.default_rng(3).integers(0, 97, 40).tolist()


@dataclass(frozen=True)
class Family:
    """One GGUF architecture: a Transformers config, and the metadata that its conversion writes beside the common."""

    gguf_name: str
    model_type: str
    values: Mapping[str, Any]
    permutes: bool = False
    metadata: Write = lambda writer, config: None

    def config(self) -> PretrainedConfig:
        return AutoConfig.for_model(self.model_type, **{**TINY, **self.values})


def _sigmoids(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_shared_count(config.n_shared_experts)


def _glm(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    _sigmoids(writer, config)
    writer.add_rope_dimension_count(8)
    writer.add_nextn_predict_layers(0)


def _gpt_oss(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    head_size(writer, config)
    writer.add_sliding_window(config.sliding_window)
    yarn(writer, config)


_YARN = {"rope_type": "yarn", "rope_theta": 150_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SIGMOID_EXPERTS = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
}
_GRANITE = {"num_local_experts": 5, "attention_multiplier": 0.1, "embedding_multiplier": 3.0, "logits_scaling": 2.5}
FAMILIES = {
    "mixtral": Family("llama", "mixtral", {"num_local_experts": 5, "sliding_window": None}, permutes=True),
    "qwen2moe": Family("qwen2moe", "qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3moe": Family(
        "qwen3moe", "qwen3_moe", {**_EXPERTS, "norm_topk_prob": True, "head_dim": 24}, metadata=head_size
    ),
    "olmoe": Family("olmoe", "olmoe", {"num_experts": 6, "num_experts_per_tok": 3}),
    "granitemoe": Family("granitemoe", "granitemoe", _GRANITE, permutes=True, metadata=granite_factors),
    "granitemoe-shared": Family(
        "granitemoe",
        "granitemoeshared",
        {**_GRANITE, "shared_intermediate_size": 32},
        permutes=True,
        metadata=granite_factors,
    ),
    "gpt-oss": Family(
        "gpt-oss",
        "gpt_oss",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "intermediate_size": 64,
            "head_dim": 24,
            "sliding_window": 13,
            "rope_parameters": {**_YARN, "truncate": False},
        },
        metadata=_gpt_oss,
    ),
    "dots1": Family("dots1", "dots1", _SIGMOID_EXPERTS, metadata=_sigmoids),
    "glm4moe": Family(
        "glm4moe",
        "glm4_moe",
        {**_SIGMOID_EXPERTS, "attention_bias": True, "use_qk_norm": True, "num_nextn_predict_layers": 0},
        metadata=_glm,
    ),
}


def converted(model: PreTrainedModel, family: Family) -> dict[str, Tensor]:
    """Return the tensors under the gguf package's names, as llama.cpp's conversion changes them."""
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == family.gguf_name)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        layer, kind = _split_in_two(name)
        is_bias = name.endswith("_bias") and "experts" in name
        if family.gguf_name == "gpt-oss" and "experts" in name and not is_bias:
            values = values.swapaxes(1, 2)
        if kind is not None:  # gate and up in one tensor
            halves = np.split(values, 2, axis=values.ndim - 2)
            if family.gguf_name == "gpt-oss":
                halves = [values[:, 0::2], values[:, 1::2]]
            for half, tensor_kind in zip(halves, kind, strict=True):
                tensors[TENSOR_NAMES[tensor_kind].format(bid=layer) + (".bias" if is_bias else ".weight")] = half
            continue
        gguf_name = _expert_name(name, layer) or names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        for part, count in heads.items():
            if family.permutes and f".{part}." in name:
                values = permuted(values, count)
        tensors[gguf_name] = values.squeeze()
    return tensors


def _split_in_two(name: str) -> tuple[int, tuple[MODEL_TENSOR, MODEL_TENSOR] | None]:
    layer = int(name.split(".")[2]) if name.startswith("model.layers.") else 0
    if "experts.gate_up_proj" in name:
        return layer, (MODEL_TENSOR.FFN_GATE_EXP, MODEL_TENSOR.FFN_UP_EXP)
    if "shared_mlp.input_linear" in name:
        return layer, (MODEL_TENSOR.FFN_GATE_SHEXP, MODEL_TENSOR.FFN_UP_SHEXP)
    return layer, None


def _expert_name(name: str, layer: int) -> str | None:
    kinds = {
        "experts.down_proj_bias": (MODEL_TENSOR.FFN_DOWN_EXP, ".bias"),
        "mlp.router.bias": (MODEL_TENSOR.FFN_GATE_INP, ".bias"),
        "self_attn.sinks": (MODEL_TENSOR.ATTN_SINKS, ".weight"),
        "experts.down_proj": (MODEL_TENSOR.FFN_DOWN_EXP, ".weight"),
        "router.weight": (MODEL_TENSOR.FFN_GATE_INP, ".weight"),
        "e_score_correction_bias": (MODEL_TENSOR.FFN_EXP_PROBS_B, ".bias"),
    }
    found = next((kind for end, kind in kinds.items() if name.endswith(end)), None)
    return found and TENSOR_NAMES[found[0]].format(bid=layer) + found[1]


def write(
    model: PreTrainedModel,
    family: Family,
    path: Path,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: Write | None = None,
    extra: Mapping[str, Tensor] | None = None,
) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, family.gguf_name)
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    common_metadata(writer, config)
    writer.add_expert_count(experts or config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    (metadata or family.metadata)(writer, config)
    for name, values in {**converted(model, family), **(extra or {})}.items():
        plain = kind == gguf.GGMLQuantizationType.F32 or values.ndim < 2 or "ffn_gate_inp" in name
        if plain or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            writer.add_tensor(name, np.ascontiguousarray(values))
        else:
            writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_converted_model_has_the_config_and_the_logits_that_it_came_from(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = random_model(family.config())
    write(model, family, tmp_path / "model.gguf")
    file = GGUFFile(tmp_path / "model.gguf")
    config = gguf_config(file)
    architecture = type(model).__name__
    assert config.list("architectures") == [architecture]
    original = HFConfig({**json.loads(model.config.to_json_string()), "architectures": [architecture]})
    read_config = ARCHITECTURES[architecture].read_config
    assert_alike(read_config(config), read_config(original))
    expected = transformers_logits(model, TOKENS)
    for ops in available_ops():
        ours = build_model(config, GGUFWeights(file), ops, 128)  # refuses tensors that are left over
        np.testing.assert_allclose(PagedRun(ours, ops).run(TOKENS), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "F16"])
def test_each_expert_of_a_stack_has_its_own_blocks(kind: str, tmp_path: Path) -> None:
    family, quantised = FAMILIES["qwen3moe"], gguf.GGMLQuantizationType[kind]
    model = random_model(family.config())
    write(model, family, tmp_path / "model.gguf", quantised)
    weights = GGUFWeights(GGUFFile(tmp_path / "model.gguf"))
    whole = converted(model, family)["blk.1.ffn_up_exps.weight"]
    stack = weights.stack("model.layers.1.mlp.experts.up_proj.weight", whole.shape)
    assert len(stack) == 6
    for tensor, values in zip(stack, whole, strict=True):
        expected = gguf.quants.dequantize(gguf.quants.quantize(values, quantised), quantised)
        np.testing.assert_array_equal(tensor.float32(), expected)
        np.testing.assert_array_equal(tensor.compact().dequantized(), expected)


def test_layers_that_guess_further_tokens_are_left_out(tmp_path: Path) -> None:
    family = FAMILIES["glm4moe"]
    model = random_model(family.config())

    def metadata(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
        _sigmoids(writer, config)
        writer.add_rope_dimension_count(8)
        writer.add_nextn_predict_layers(1)

    last = model.config.num_hidden_layers - 1
    extra = {f"blk.{last}.nextn.{part}.weight": np.ones(64, np.float32) for part in ("enorm", "hnorm")}
    write(model, family, tmp_path / "model.gguf", metadata=metadata, extra=extra)
    file = GGUFFile(tmp_path / "model.gguf")
    ops = available_ops()[-1]
    ours = build_model(gguf_config(file), GGUFWeights(file), ops, 128)
    assert ours.facts.num_layers == last


def test_what_a_file_says_of_experts_is_checked(tmp_path: Path) -> None:
    family = FAMILIES["dots1"]
    model = random_model(family.config())

    def softmax(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)

    write(model, family, tmp_path / "model.gguf", metadata=softmax)
    with pytest.raises(UnsupportedError, match="sigmoid"):
        gguf_config(GGUFFile(tmp_path / "model.gguf"))

    family = FAMILIES["qwen3moe"]
    model = random_model(family.config())
    model.config.num_experts_per_tok = 7
    write(model, family, tmp_path / "many.gguf")
    config = gguf_config(GGUFFile(tmp_path / "many.gguf"))
    with pytest.raises(CheckpointError, match="num_experts_per_tok=7 exceeds the 6 experts"):
        ARCHITECTURES["Qwen3MoeForCausalLM"].read_config(config)
