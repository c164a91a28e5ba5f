"""Every encoder, and decoders with heads, against Transformers on tiny random models: hidden states and heads."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from octavo.attention.context import ForwardContext
from octavo.errors import UnsupportedError
from octavo.layers.distances import distance_buckets
from octavo.loader.hf_config import HFConfig
from octavo.models import gte, nomic_bert
from octavo.models.pooling import PoolingModel
from octavo.models.pooling_registry import build_pooling_model, describe_pooling
from octavo.models.registry import describe
from octavo.ops.interface import Float, Ops
from octavo.ops.tape import ForwardInputs, TapeLimits
from octavo.worker.bound_model import bind_model
from octavo.worker.input_builder import metadata_without_cache
from tests.models.harness import TINY, ArrayWeights, PagedRun, available_ops, hf_config, tensors_of

LENGTHS = (1, 37, 6, 61)
ENCODER: Mapping[str, Any] = {**TINY, "num_key_value_heads": None, "type_vocab_size": 2}
BERT = {key: value for key, value in ENCODER.items() if key != "num_key_value_heads"}
MPNET = {key: value for key, value in BERT.items() if key != "type_vocab_size"} | {"pad_token_id": 1}
MODERN = {key: value for key, value in BERT.items() if key != "type_vocab_size"} | {
    "local_attention": 16,
    "global_attn_every_n_layers": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
DISTIL = dict(vocab_size=97, dim=64, hidden_dim=80, n_layers=2, n_heads=4, max_position_embeddings=256, pad_token_id=0)
DECODER = dict(TINY)
GEMMA = {**TINY, "head_dim": 24, "query_pre_attn_scalar": 20, "sliding_window": 13, "use_bidirectional_attention": True}
GEMMA["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
LABELS = {"num_labels": 3}

MODELS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", BERT),
    "bert-one-type": ("BertModel", "BertConfig", {**BERT, "type_vocab_size": 1, "hidden_act": "relu"}),
    "bert-classes": ("BertForSequenceClassification", "BertConfig", {**BERT, **LABELS}),
    "bert-token-classes": ("BertForTokenClassification", "BertConfig", {**BERT, **LABELS}),
    "roberta": ("RobertaModel", "RobertaConfig", {**BERT, "type_vocab_size": 1, "pad_token_id": 1}),
    "roberta-classes": ("RobertaForSequenceClassification", "RobertaConfig", {**BERT, **LABELS, "type_vocab_size": 1}),
    "xlm-roberta-score": (
        "XLMRobertaForSequenceClassification",
        "XLMRobertaConfig",
        {**BERT, "num_labels": 1, "type_vocab_size": 1, "pad_token_id": 1},
    ),
    "xlm-roberta-token-classes": (
        "XLMRobertaForTokenClassification",
        "XLMRobertaConfig",
        {**BERT, **LABELS, "type_vocab_size": 1},
    ),
    "distilbert": ("DistilBertModel", "DistilBertConfig", DISTIL),
    "distilbert-classes": ("DistilBertForSequenceClassification", "DistilBertConfig", {**DISTIL, **LABELS}),
    "modernbert": ("ModernBertModel", "ModernBertConfig", MODERN),
    "modernbert-biased": (
        "ModernBertModel",
        "ModernBertConfig",
        {**MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "hidden_activation": "silu"},
    ),
    "modernbert-classes": ("ModernBertForSequenceClassification", "ModernBertConfig", {**MODERN, **LABELS}),
    "modernbert-mean": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {**MODERN, **LABELS, "classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True},
    ),
    "modernbert-token-classes": ("ModernBertForTokenClassification", "ModernBertConfig", {**MODERN, **LABELS}),
    "nomic-bert": ("NomicBertModel", "NomicBertConfig", BERT),
    "mpnet": ("MPNetModel", "MPNetConfig", {**MPNET, "layer_norm_eps": 1e-5}),
    "mpnet-classes": ("MPNetForSequenceClassification", "MPNetConfig", {**MPNET, **LABELS}),
    "mpnet-token-classes": ("MPNetForTokenClassification", "MPNetConfig", {**MPNET, **LABELS}),
    "gte": ("GteModel", "GteConfig", {**BERT, "type_vocab_size": 1}),
    "gte-no-types": ("GteModel", "GteConfig", {**BERT, "type_vocab_size": 0}),
    "gte-score": ("GteForSequenceClassification", "GteConfig", {**BERT, "num_labels": 1}),
    "gte-token-classes": ("GteForTokenClassification", "GteConfig", {**BERT, **LABELS}),
    "jina-v3": ("JinaEmbeddingsV3Model", "JinaEmbeddingsV3Config", {**BERT, "type_vocab_size": 1}),
    "jina-v3-classes": ("JinaEmbeddingsV3ForSequenceClassification", "JinaEmbeddingsV3Config", {**BERT, **LABELS}),
    "gemma3-both-ways": ("Gemma3TextModel", "Gemma3TextConfig", GEMMA),
}
DECODERS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Model", "Qwen3Config", {**DECODER, "head_dim": 24}),
    "llama": ("LlamaModel", "LlamaConfig", DECODER),
    "gpt2": ("GPT2Model", "GPT2Config", dict(vocab_size=97, n_embd=64, n_layer=2, n_head=4, n_positions=128)),
    "qwen3-classes": ("Qwen3ForSequenceClassification", "Qwen3Config", {**DECODER, **LABELS, "head_dim": 16}),
    "qwen2-score": ("Qwen2ForSequenceClassification", "Qwen2Config", {**DECODER, "num_labels": 1}),
    "llama-token-classes": ("LlamaForTokenClassification", "LlamaConfig", {**DECODER, **LABELS}),
}


def random_model(class_name: str, config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    model: PreTrainedModel = getattr(transformers, class_name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 * parameter.shape[-1] ** -0.5)
    return model.eval()


def make(entry: tuple[str, str, dict[str, Any]]) -> PreTrainedModel:
    class_name, config_name, values = entry
    return random_model(class_name, getattr(transformers, config_name)(**values))


def build(model: PreTrainedModel, ops: Ops, tensors: Mapping[str, NDArray[np.float32]] | None = None) -> PoolingModel:
    weights = ArrayWeights(tensors if tensors is not None else tensors_of(model))
    return build_pooling_model(hf_config(model), weights, (), ops, 128)


def texts(seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 97, length).tolist() for length in LENGTHS]


def run_packed(model: PoolingModel, ops: Ops, inputs: list[list[int]], use_tape: bool = False) -> list[Float]:
    """Return the last hidden states of several texts, computed in one step without padding."""
    lengths = [len(ids) for ids in inputs]
    query_start = np.cumsum([0, *lengths], dtype=np.int32)
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    rows = np.arange(query_start[-1], dtype=np.int32)
    limits = TapeLimits(256, 256, 256, model.facts.hidden_size, 1) if use_tape else None
    bound = bind_model(model, ops, {}, [()], limits, bool(model.steps))
    token_ids = np.concatenate([np.asarray(ids, np.int32) for ids in inputs])
    hidden = bound.forward(ForwardInputs(token_ids, positions, rows, [metadata_without_cache(query_start)])).copy()
    return [hidden[a:b] for a, b in itertools.pairwise(query_start)]


def transformers_states(
    model: PreTrainedModel, ids: list[int]
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Return the last hidden states [T, H], and the logits if the model has any."""
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    states = out.last_hidden_state if hasattr(out, "last_hidden_state") else out.hidden_states[-1]
    return states[0].numpy(), out.logits[0].numpy() if hasattr(out, "logits") else None


def close(ours: Any, theirs: Any) -> bool:
    return bool(np.allclose(ours, theirs, atol=3e-4, rtol=3e-4))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ops", available_ops(), ids=lambda ops: ops.name)
def test_encoders_equal_transformers_in_a_packed_step(name: str, ops: Ops) -> None:
    reference = make(MODELS[name])
    model = build(reference, ops)
    facts = describe_pooling(hf_config(reference))
    assert not facts.is_causal and not model.kv_cache_specs(16, "float32")
    for ids, hidden in zip(texts(), run_packed(model, ops, texts()), strict=True):
        states, logits = transformers_states(reference, ids)
        assert close(hidden, states)
        if logits is not None:
            rows = hidden if logits.ndim == 2 else hidden.mean(axis=0)[None] if facts.pooling == "MEAN" else hidden[:1]
            assert close(model.compute_logits(rows, ops), logits if logits.ndim == 2 else logits[None])


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_equal_transformers_chunk_by_chunk(name: str) -> None:
    ops = available_ops()[-1]
    reference = make(DECODERS[name])
    reference.config.pad_token_id = 0
    model = build(reference, ops)
    facts = describe_pooling(hf_config(reference))
    assert facts.is_causal and facts.pooling == "LAST"
    ids = texts()[3]
    run = PagedRun(model, ops)  # its "logits" are what the head gives for each token
    values = run.run(ids, chunks=[20, 1, 40])
    states, logits = transformers_states(reference, ids)
    expected = states if logits is None else logits
    assert close(values if expected.ndim == 2 else values[-1], expected)


@pytest.mark.parametrize("name", ["bert", "modernbert", "mpnet", "nomic-bert", "gte", "gemma3-both-ways"])
def test_states_are_the_same_bits_alone_in_a_batch_and_from_the_tape(name: str) -> None:
    ops = available_ops()[-1]
    model = build(make(MODELS[name]), ops)
    together = run_packed(model, ops, texts())
    for ids, hidden, taped in zip(texts(), together, run_packed(model, ops, texts(), use_tape=True), strict=True):
        (alone,) = run_packed(model, ops, [ids])
        if ops.name == "native":  # BLAS promises no such thing
            assert np.array_equal(alone, hidden)
        assert np.array_equal(taped, hidden) or ops.name != "native"


def test_nomic_checkpoints_under_their_first_names() -> None:
    ops = available_ops()[-1]
    reference = make(MODELS["nomic-bert"])
    tensors = states_of(reference)
    renamed = {}
    for name, array in tensors.items():
        for new, old in (
            ("embeddings.LayerNorm", "emb_ln"),
            ("layers.", "encoder.layers."),
            ("self_attn.o_proj", "attn.out_proj"),
            ("post_attention_layernorm", "norm1"),
            ("post_mlp_layernorm", "norm2"),
            ("mlp.gate_proj", "mlp.fc12"),
            ("mlp.up_proj", "mlp.fc11"),
            ("mlp.down_proj", "mlp.fc2"),
        ):
            name = name.replace(new, old)
        renamed[name] = array
    for index in range(3):
        parts = [renamed.pop(f"encoder.layers.{index}.self_attn.{part}_proj.weight") for part in "qkv"]
        renamed[f"encoder.layers.{index}.attn.Wqkv.weight"] = np.concatenate(parts)
    assert any(name.startswith(nomic_bert.ORIGINAL_NAMES.embedding_norm) for name in renamed)
    ours = run_packed(build(reference, ops, tensors), ops, texts())
    first_names = run_packed(build(reference, ops, renamed), ops, texts())
    assert all(np.array_equal(a, b) for a, b in zip(ours, first_names, strict=True))


def states_of(model: PreTrainedModel) -> dict[str, NDArray[np.float32]]:
    """Return a model's tensors under the names that it has in memory."""
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def gte_first_names(tensors: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Return a GTE model's tensors as Alibaba publishes them, with fused projections."""
    renamed = {}
    for name, array in tensors.items():
        for new, old in (
            ("gte.", "new."),
            ("layers.", "encoder.layer."),
            ("self_attn.o_proj", "attention.o_proj"),
            ("post_attention_layernorm", "attn_ln"),
            ("post_mlp_layernorm", "mlp_ln"),
        ):
            name = name.replace(new, old)
        renamed[name] = array
    for index in range(3):
        prefix = f"new.encoder.layer.{index}."
        for kind in ("weight", "bias"):
            parts = [renamed.pop(f"{prefix}self_attn.{part}_proj.{kind}") for part in "qkv"]
            renamed[f"{prefix}attention.qkv_proj.{kind}"] = np.concatenate(parts)
        parts = [renamed.pop(f"{prefix}mlp.{part}_proj.weight") for part in ("up", "gate")]
        renamed[f"{prefix}mlp.up_gate_proj.weight"] = np.concatenate(parts)
    return renamed


def test_gte_checkpoints_under_their_first_names() -> None:
    ops = available_ops()[-1]
    reference = make(MODELS["gte-score"])
    ours = build(reference, ops, states_of(reference))
    config = hf_config(reference)
    first = {"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "pack_qkv": True, "use_cache": False}
    config.values.update(first, architectures=["NewForSequenceClassification"])
    model = build_pooling_model(config, ArrayWeights(gte_first_names(states_of(reference))), (), ops, 128)
    for a, b in zip(run_packed(ours, ops, texts()), run_packed(model, ops, texts()), strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(ours.compute_logits(a, ops), model.compute_logits(b, ops))


def test_jina_checkpoints_under_the_names_in_memory() -> None:
    ops = available_ops()[-1]
    reference = make(MODELS["jina-v3-classes"])
    saved, states = build(reference, ops), build(reference, ops, states_of(reference))
    for a, b in zip(run_packed(saved, ops, texts()), run_packed(states, ops, texts()), strict=True):
        assert np.array_equal(a, b)


def test_gtes_ntk_scaling_widens_the_base_and_draws_positions_together() -> None:
    values = {**BERT, "architectures": ["NewModel"], "rope_theta": 20000, "max_position_embeddings": 8192}
    config = gte.read_config(HFConfig({**values, "rope_scaling": {"type": "ntk", "factor": 8.0}}))
    (rope,) = {layer.rope for layer in config.layers}
    assert rope is not None and config.max_position == 8192
    expected = 160_000.0 ** (-np.arange(0, 16, 2) / 16) / 8 ** (2 / 16)
    assert np.allclose(rope.inverse_frequencies(8192), expected, rtol=1e-6)
    with pytest.raises(UnsupportedError, match="mixed_b"):
        gte.read_config(HFConfig({**values, "rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.7}}))


def test_distances_fall_into_transformers_buckets() -> None:
    distance = torch.arange(-599, 600)
    expected = MPNetEncoder.relative_position_bucket(distance, num_buckets=32).numpy()
    assert np.array_equal(distance_buckets(32, 600), expected)


def test_second_texts_have_types_of_their_own() -> None:
    ops = available_ops()[-1]
    reference = make(MODELS["bert"])
    model = build(reference, ops)
    ids = texts()[1]
    types = [0] * 20 + [1] * 17
    with torch.no_grad():
        expected = reference(torch.tensor([ids]), token_type_ids=torch.tensor([types])).last_hidden_state[0].numpy()
    positions = np.arange(37, dtype=np.int32)
    positions[20:] += model.second_text_offset
    context = ForwardContext(ops, {}, {}, None, np.array([0, 37], np.int32))
    assert close(model.forward(np.asarray(ids, np.int32), positions, context), expected)


def test_a_bidirectional_decoder_is_refused_for_generation() -> None:
    config = hf_config(make(MODELS["gemma3-both-ways"]))
    config.values["architectures"] = ["Gemma3ForCausalLM"]
    with pytest.raises(UnsupportedError, match="runner='pooling'"):
        describe(config)
    assert not describe_pooling(config).is_causal


def test_unknown_architectures_and_heads_name_what_is_supported() -> None:
    with pytest.raises(UnsupportedError, match=r"Bert, .*ForSequenceClassification"):
        describe_pooling(HFConfig({"architectures": ["ElectraModel"]}))
    with pytest.raises(UnsupportedError, match="head"):
        describe_pooling(HFConfig({**BERT, "architectures": ["NomicBertForSequenceClassification"]}))
