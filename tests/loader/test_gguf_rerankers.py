"""Rerankers and classifiers in GGUF, as llama.cpp converts RoBERTa and XLM-RoBERTa: the scores of Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, RobertaConfig, RobertaForSequenceClassification

from octavo import LLM
from octavo.config.configs import LoadConfig
from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.resolve import open_checkpoint

TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", *"abcdefghij", *(f"\u2581{letter}" for letter in "abcdefghij")]
CONFIG: dict[str, Any] = dict(
    vocab_size=len(TOKENS),
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=66,
    type_vocab_size=1,
    pad_token_id=1,
    layer_norm_eps=1e-5,
)


def tiny_model(**options: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model = RobertaForSequenceClassification(RobertaConfig(**CONFIG, **options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def write(path: Path, model: PreTrainedModel, labels: list[str] | None = None, without: str | None = None) -> str:
    """Write what the conversion makes of the model; without: a tensor to leave out."""
    config, names = model.config, gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, CONFIG["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings - 2)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    if labels is not None:
        writer.add_classifier_output_labels(labels)
    writer.add_tokenizer_model("t5")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * 4 + [-float(i) for i in range(len(TOKENS) - 4)])
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.UNKNOWN] + [gguf.TokenType.NORMAL] * 21)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_sep_token_id(2)
    writer.add_pad_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_add_space_prefix(True)
    for name, parameter in model.state_dict().items():
        gguf_name = names.get_name(name.removeprefix("roberta."), try_suffixes=(".weight", ".bias"))
        values = parameter.numpy()
        if gguf_name == without:
            continue
        assert gguf_name is not None, name
        writer.add_tensor(gguf_name, values[2:].copy() if gguf_name == "position_embd.weight" else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def logits(model: PreTrainedModel, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def test_a_reranker_scores_pairs_as_its_original(tmp_path: Path) -> None:
    model = tiny_model(num_labels=1)
    llm = LLM(write(tmp_path / "model.gguf", model))
    for output, second in zip(llm.score("ab c", ["d", "ef g"], use_tqdm=False), ("d", "ef g"), strict=True):
        ids = [llm.get_tokenizer().encode(text, add_special_tokens=False) for text in ("ab c", second)]
        assert output.prompt_token_ids == [0, *ids[0], 2, 2, *ids[1], 2]
        score = 1 / (1 + np.exp(-logits(model, output.prompt_token_ids)[0]))
        assert abs(output.outputs.score - score) < 1e-5


def test_a_classifier_has_its_labels_and_probabilities(tmp_path: Path) -> None:
    model = tiny_model(num_labels=3)
    llm = LLM(write(tmp_path / "model.gguf", model, ["no", "maybe", "yes"]))
    assert llm.llm_engine.config.model.pooling.labels == ("no", "maybe", "yes")
    (output,) = llm.classify("ab c", use_tqdm=False)
    expected = torch.softmax(torch.tensor(logits(model, output.prompt_token_ids)), dim=0).numpy()
    assert np.allclose(output.outputs.probs, expected, atol=1e-5)
    with pytest.raises(CheckpointError, match="names 2 labels, but its head gives 3"):
        open_checkpoint(write(tmp_path / "wrong.gguf", model, ["no", "yes"]), LoadConfig())


@pytest.mark.parametrize("without", ["cls.weight", "cls.output.weight", "token_types.weight"])
def test_heads_of_which_the_file_has_not_all_are_refused(without: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", tiny_model(num_labels=1), without=without)
    with pytest.raises(UnsupportedError, match="a reranker or classifier"):
        open_checkpoint(path, LoadConfig())
