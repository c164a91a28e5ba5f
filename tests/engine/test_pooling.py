"""Pooling models in the engine: same bits in any batch, nothing held, parameters checked, folders honoured."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3Model,
)

from octavo import LLM, AsyncLLM, EngineArgs, PoolingParams
from octavo.engine.resolve import resolve
from octavo.errors import ConfigError, InvalidRequestError, UnsupportedError
from octavo.tokenizers.text_pairs import pair_lengths
from tests.tiny_encoders import (
    SIZES,
    dense_parameters,
    sentence_modules,
    write_bert,
    write_cross_encoder,
    write_encoder,
)

KV = {"kv_cache_memory_bytes": 2**22}  # few blocks: bookkeeping of many takes seconds
TEXTS = ["a b c", "d", "e f g h i j k l m n o p q r", "a b c", "z y x w v u t s r q p"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def llm(bert: Path) -> Iterator[LLM]:
    yield LLM(str(bert))


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("cross"))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256}
    return write_encoder(tmp_path_factory.mktemp("decoder"), Qwen3Model(Qwen3Config(**sizes)))


def vectors(llm: LLM, texts: Any, **options: Any) -> np.ndarray:
    return np.array([output.outputs.embedding for output in llm.embed(texts, use_tqdm=False, **options)])


# -- sentence-transformers' folders ------------------------------------------------------------------------------------


def test_folder_is_pooled_projected_and_normalised_as_its_files_say(llm: LLM, bert: Path) -> None:
    reference = BertModel.from_pretrained(bert)
    weight, bias = dense_parameters()
    for text, ours in zip(TEXTS, vectors(llm, TEXTS), strict=True):
        ids = llm.get_tokenizer().encode(text)
        ids = ids if len(ids) <= 12 else [*ids[:11], 3]  # cut, and the last special token stays
        with torch.no_grad():
            states = reference(torch.tensor([ids])).last_hidden_state[0]
            projected = torch.tanh(states.mean(dim=0) @ weight.T + bias)
        assert np.allclose(ours, (projected / projected.norm()).numpy(), atol=1e-5)


def test_prompts_are_put_before_texts_by_name_or_as_given(llm: LLM) -> None:
    assert np.array_equal(vectors(llm, "b", prompt_name="query"), vectors(llm, "a a b"))
    assert np.array_equal(vectors(llm, "b", tokenization_kwargs={"instruction": "c "}), vectors(llm, "c b"))
    with pytest.raises(InvalidRequestError, match="query"):
        llm.embed("b", prompt_name="passage", use_tqdm=False)


@pytest.mark.parametrize("wish", [{"prompt_name": "query"}, {"instruction": "c "}])
@pytest.mark.parametrize("prompt", [[4, 5], {"prompt_token_ids": [4]}, {"prompt": "a", "text_pair": "b"}])
def test_prompts_that_could_not_be_put_before_an_input_are_refused(llm: LLM, wish: dict[str, str], prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="go before a single text") as caught:
        llm.embed([prompt], tokenization_kwargs=wish, use_tqdm=False)
    assert caught.value.parameter == next(iter(wish))


def test_a_limit_that_leaves_no_room_for_a_text_is_refused(llm: LLM, cross_encoder: Path) -> None:
    assert len(llm.embed("a b", truncate_prompt_tokens=3, use_tqdm=False)[0].prompt_token_ids) == 3
    with pytest.raises(InvalidRequestError, match=r"at least 3 for a text, beside the 2 tokens .* got 2"):
        llm.embed("a b", truncate_prompt_tokens=2, use_tqdm=False)
    bare = {"truncate_prompt_tokens": 1, "add_special_tokens": False}
    assert len(llm.embed("a b", tokenization_kwargs=bare, use_tqdm=False)[0].prompt_token_ids) == 1
    reranker = LLM(str(cross_encoder))
    assert len(reranker.score("a b", "c", truncate_prompt_tokens=5, use_tqdm=False)[0].prompt_token_ids) == 5
    with pytest.raises(InvalidRequestError, match=r"at least 5 for two texts, beside the 3 tokens .* got 4"):
        reranker.score("a b", "c", truncate_prompt_tokens=4, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="instruction is for cross-encoders with a chat template"):
        reranker.score("a b", "c", instruction="x", use_tqdm=False)


def test_texts_are_cut_where_the_folder_says_and_where_asked(llm: LLM) -> None:
    (output,) = llm.embed(TEXTS[2], use_tqdm=False)
    assert len(output.prompt_token_ids) == 12
    (output,) = llm.embed(TEXTS[2], truncate_prompt_tokens=5, use_tqdm=False)
    assert output.prompt_token_ids == [2, *llm.get_tokenizer().encode("e f g", add_special_tokens=False), 3]
    kwargs = {"truncate_prompt_tokens": 5, "truncation_side": "left"}
    (output,) = llm.embed(TEXTS[2], tokenization_kwargs=kwargs, use_tqdm=False)
    assert output.prompt_token_ids == [2, *llm.get_tokenizer().encode("p q r", add_special_tokens=False), 3]
    with pytest.raises(InvalidRequestError, match="longest input has 12"):
        llm.embed([[4] * 13], use_tqdm=False)


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("1_Pooling__config_json", {"pooling_mode_attention": True}, "pooling mode"),
        ("1_Pooling__config_json", {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "exactly one"),
        ("modules_json", sentence_modules("Pooling", "LSTM"), "LSTM"),
        ("2_Dense__config_json", {"in_features": 32, "out_features": 8, "activation_function": "x.Mish"}, "Mish"),
    ],
)
def test_what_is_not_built_in_a_folder_is_refused(
    bert: Path, tmp_path: Path, file: str, value: Any, message: str
) -> None:
    for path in bert.rglob("*"):
        if path.is_file():
            target = tmp_path / path.relative_to(bert)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    (tmp_path / file.replace("__", "/").replace("_json", ".json")).write_text(json.dumps(value))
    with pytest.raises(UnsupportedError, match=message):
        resolve(EngineArgs(model=str(tmp_path)))


# -- batches and blocks ------------------------------------------------------------------------------------------------


@pytest.mark.native_ops
def test_a_result_is_the_same_bits_alone_and_in_any_batch(llm: LLM, decoder: Path) -> None:
    for engine in (
        llm,
        LLM(str(decoder), **KV, max_num_batched_tokens=16, max_num_seqs=8, long_prefill_token_threshold=5),
    ):
        together = vectors(engine, TEXTS * 8)
        assert np.array_equal(together, np.tile(together[:5], (8, 1)))
        assert np.array_equal(together[:5], np.concatenate([vectors(engine, text) for text in TEXTS]))
        assert np.array_equal(together[4::-1], vectors(engine, TEXTS[::-1]))


def test_encoders_hold_no_blocks_and_take_prompts_as_long_as_the_model(llm: LLM) -> None:
    core = llm.llm_engine.engine_core.engine_core  # type: ignore[attr-defined]
    before = _prompt_tokens(llm)
    assert len(vectors(llm, [[4] * 12])[0]) == 8
    assert _prompt_tokens(llm) - before == 12
    assert core.scheduler.make_stats().kv_cache_usage == 0.0


def _prompt_tokens(llm: LLM) -> int:
    return next(metric.value for metric in llm.get_metrics() if metric.name == "vllm:prompt_tokens")  # type: ignore[attr-defined]


@pytest.mark.native_ops
def test_decoders_pool_the_last_token_and_use_the_prefix_cache(decoder: Path) -> None:
    llm = LLM(str(decoder), **KV, block_size=4, max_num_batched_tokens=16, max_num_seqs=8)
    reference = Qwen3Model.from_pretrained(decoder)
    ids = [int(i) for i in np.random.default_rng(0).integers(4, 30, 256)]  # as long as the model: no token follows
    (first,) = llm.embed([ids], use_tqdm=False)
    (again,) = llm.embed([ids], use_tqdm=False)
    assert first.num_cached_tokens == 0 and again.num_cached_tokens > 200
    assert first.outputs.embedding == again.outputs.embedding
    with torch.no_grad():
        state = reference(torch.tensor([ids])).last_hidden_state[0, -1]
    assert np.allclose(first.outputs.embedding, (state / state.norm()).numpy(), atol=1e-4)
    tokens = llm.encode([ids], pooling_task="token_embed", use_tqdm=False)[0]  # gathered over many steps
    assert tokens.num_cached_tokens == 0 and tokens.outputs.data.shape == (256, 32)
    assert np.array_equal(tokens.outputs.data[-1], np.float32(first.outputs.embedding))


@pytest.mark.native_ops
def test_a_step_must_hold_the_longest_text_and_may_hold_no_more(bert: Path, llm: LLM) -> None:
    tight = LLM(str(bert), max_num_batched_tokens=12, max_num_seqs=12)
    assert np.array_equal(vectors(tight, TEXTS), vectors(llm, TEXTS))
    with pytest.raises(ConfigError, match="max_model_len=12"):
        resolve(EngineArgs(model=str(bert), max_num_batched_tokens=11, max_num_seqs=4))


def test_mean_pooling_of_a_decoder_computes_prompts_whole(decoder: Path) -> None:
    llm = LLM(str(decoder), **KV, pooler_config={"pooling_type": "MEAN", "use_activation": False}, runner="pooling")
    scheduler = llm.llm_engine.config.scheduler
    assert not scheduler.enable_chunked_prefill and scheduler.max_num_batched_tokens >= 256
    ids = [5] * 100
    with torch.no_grad():
        states = Qwen3Model.from_pretrained(decoder)(torch.tensor([ids])).last_hidden_state[0]
    assert np.allclose(vectors(llm, [ids])[0], states.mean(dim=0).numpy(), atol=1e-4)
    with pytest.raises(ConfigError, match="enable_chunked_prefill"):
        resolve(EngineArgs(model=str(decoder), pooler_config={"pooling_type": "MEAN"}, enable_chunked_prefill=True))


@pytest.mark.native_ops
@pytest.mark.usefixtures("meeting_folder")
def test_requests_go_on_when_their_engines_process_is_killed(bert: Path, llm: LLM) -> None:
    engine = AsyncLLM.from_engine_args(EngineArgs(model=str(bert)))

    async def embed(number: int) -> Any:
        async for output in engine.encode(TEXTS[number % 5], PoolingParams(), str(number)):
            return output.outputs.data

    async def run() -> list[Any]:
        tasks = [asyncio.create_task(embed(number)) for number in range(200)]
        await asyncio.sleep(0)
        os.kill(engine.engine_core.process_id, signal.SIGKILL)
        return await asyncio.gather(*tasks)

    try:
        results = np.array(asyncio.run(run()))
    finally:
        engine.shutdown()
    assert results.shape == (200, 8) and np.allclose(results[:5], vectors(llm, TEXTS), atol=1e-6)
    assert np.array_equal(results, np.tile(results[:5], (40, 1)))


# -- classes and scores ------------------------------------------------------------------------------------------------


def test_cross_encoders_score_pairs_with_their_token_types(cross_encoder: Path) -> None:
    llm = LLM(str(cross_encoder))
    for nothing in (None, 5):
        with pytest.raises(InvalidRequestError, match=f"got {nothing}"):
            llm.score(nothing, "a")
    reference = BertForSequenceClassification.from_pretrained(cross_encoder)
    pairs = [("a b", "c d e"), ("a b", "z"), ("a b", "c d e")]
    outputs = llm.score(pairs[0][0], [second for _, second in pairs], use_tqdm=False)
    for (first, second), output in zip(pairs, outputs, strict=True):
        tokenizer = llm.get_tokenizer()
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in (first, second)]
        joined = [2, *ids[0], 3, *ids[1], 3]
        types = [0] * (len(ids[0]) + 2) + [1] * (len(ids[1]) + 1)
        with torch.no_grad():
            logit = reference(torch.tensor([joined]), token_type_ids=torch.tensor([types])).logits[0, 0]
        assert output.prompt_token_ids == joined
        assert abs(output.outputs.score - float(torch.sigmoid(logit))) < 1e-5
    (raw,) = llm.score("a", "b", pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
    (shown,) = llm.score("a", "b", use_tqdm=False)
    assert abs(1 / (1 + np.exp(-raw.outputs.score)) - shown.outputs.score) < 1e-6
    with pytest.raises(InvalidRequestError, match="as many"):
        llm.score(["a", "b"], ["c"], use_tqdm=False)


def test_late_interaction_takes_each_query_tokens_best_match(llm: LLM) -> None:
    query, document = (
        output.outputs.data for output in llm.encode(["a b", "c d e"], pooling_task="token_embed", use_tqdm=False)
    )
    params = PoolingParams(task="token_embed")
    (output,) = llm.score("a b", "c d e", pooling_params=params, use_tqdm=False)
    assert np.isclose(output.outputs.score, (query @ document.T).max(axis=1).sum())


def _add_tensors(folder: Path, architecture: str, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    """Make a checkpoint of Transformers one of an architecture that it does not have."""
    save_file({**load_file(folder / "model.safetensors"), **tensors}, folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "architectures": [architecture], **config}))
    return folder


def test_colbert_keeps_a_projected_vector_for_each_token(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, BertModel(BertConfig(**SIZES)))
    reference = BertModel.from_pretrained(folder)
    linear = torch.randn(8, 32)
    llm = LLM(str(_add_tensors(folder, "HF_ColBERT", {"linear.weight": linear}, dim=8)))
    (output,) = llm.score("a b", "c d e", use_tqdm=False)
    states = []
    for text in ("a b", "c d e"):
        with torch.no_grad():
            hidden = reference(torch.tensor([llm.get_tokenizer().encode(text)])).last_hidden_state[0] @ linear.T
        states.append(torch.nn.functional.normalize(hidden, dim=-1))
    assert abs(output.outputs.score - float((states[0] @ states[1].T).max(dim=1).values.sum())) < 1e-4
    with pytest.raises(InvalidRequestError, match="token_embed"):
        llm.embed("a", use_tqdm=False)


def test_a_reranker_that_answers_with_one_of_two_tokens_scores_through_its_template(tmp_path: Path) -> None:
    sizes = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
    folder = write_encoder(tmp_path, Qwen3ForCausalLM(Qwen3Config(**sizes, tie_word_embeddings=False)))
    reference = Qwen3ForCausalLM.from_pretrained(folder)
    overrides = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["n", "y"]}
    llm = LLM(str(folder), **KV, hf_overrides=overrides)
    template = "{{ instruction }} {% for message in messages %}{{ message.content }} {% endfor %}"
    (output,) = llm.score("a b", "c d", chat_template=template, instruction="z", use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    assert output.prompt_token_ids == tokenizer.encode("z a b c d", add_special_tokens=False)
    with torch.no_grad():
        logits = reference(torch.tensor([output.prompt_token_ids])).logits[0, -1]
    no, yes = (logits[tokenizer.convert_tokens_to_ids(token)] for token in "ny")
    assert abs(output.outputs.score - float(torch.sigmoid(yes - no))) < 1e-5
    with pytest.raises(UnsupportedError, match="two tokens"):
        resolve(EngineArgs(model=str(folder), hf_overrides={**overrides, "classifier_from_token": ["no"]}))


def test_process_rewards_are_those_of_the_step_tags(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, Qwen2Model(Qwen2Config(**SIZES, num_key_value_heads=2, num_labels=2)))
    reference = Qwen2Model.from_pretrained(folder)
    head = {"score.0.weight": torch.randn(32, 32), "score.0.bias": torch.randn(32)}
    head |= {"score.2.weight": torch.randn(2, 32), "score.2.bias": torch.randn(2)}
    llm = LLM(
        str(_add_tensors(folder, "Qwen2ForProcessRewardModel", head)),
        **KV,
        pooler_config={"pooling_type": "STEP", "step_tag_id": 5, "returned_token_ids": [1, 0]},
    )
    ids = [4, 5, 6, 7, 5, 8]
    (output,) = llm.reward([ids], use_tqdm=False)
    with torch.no_grad():
        states = reference(torch.tensor([ids])).last_hidden_state[0]
        hidden = torch.relu(states @ head["score.0.weight"].T + head["score.0.bias"])
        logits = hidden @ head["score.2.weight"].T + head["score.2.bias"]
    expected = torch.softmax(logits[[1, 4]][:, [1, 0]], dim=-1)
    assert output.outputs.data.shape == (2, 2) and np.allclose(output.outputs.data, expected.numpy(), atol=1e-4)
    for labels in ([], [2]):
        with pytest.raises(InvalidRequestError, match="returned_token_ids must be labels from 0 to 1"):
            llm.reward([ids], pooling_params=PoolingParams(returned_token_ids=labels), use_tqdm=False)
    for wish in ([2], [-1], "01"):
        with pytest.raises(ConfigError, match="returned_token_ids must be labels from 0 to 1"):
            resolve(EngineArgs(model=str(folder), pooler_config={"returned_token_ids": wish}))


def test_decoders_classify_by_their_last_token(tmp_path: Path) -> None:
    config = Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8, num_labels=3, id2label={0: "x", 1: "y", 2: "z"})
    folder = write_encoder(tmp_path, Qwen3ForSequenceClassification(config))
    llm = LLM(str(folder), **KV)
    reference = Qwen3ForSequenceClassification.from_pretrained(folder)
    reference.config.pad_token_id = 0
    (output,) = llm.classify("a b c", use_tqdm=False)
    with torch.no_grad():
        expected = torch.softmax(reference(torch.tensor([output.prompt_token_ids])).logits[0], dim=-1)
    assert np.allclose(output.outputs.probs, expected.numpy(), atol=1e-5) and output.outputs.num_classes == 3
    (tokens,) = llm.reward("a b c", use_tqdm=False)
    assert tokens.outputs.data.shape == (len(output.prompt_token_ids), 3)


# -- parameters --------------------------------------------------------------------------------------------------------


def test_dimensions_are_cut_only_where_the_model_was_trained_for_it(llm: LLM, bert: Path) -> None:
    assert vectors(llm, "a", pooling_params=PoolingParams(dimensions=8)).shape == (1, 8)
    with pytest.raises(InvalidRequestError, match="cannot be cut"):
        llm.embed("a", pooling_params=PoolingParams(dimensions=4), use_tqdm=False)
    matryoshka = LLM(str(bert), hf_overrides={"matryoshka_dimensions": [4, 8]})
    cut = vectors(matryoshka, "a", pooling_params=PoolingParams(dimensions=4))
    whole = vectors(llm, "a")[:, :4]
    assert np.allclose(cut, whole / np.linalg.norm(whole), atol=1e-6)
    for dimensions in (3, 99999):
        with pytest.raises(InvalidRequestError, match="one of 4, 8"):
            matryoshka.embed("a", pooling_params=PoolingParams(dimensions=dimensions), use_tqdm=False)


def test_wrong_tasks_prompts_and_calls_are_refused_and_hurt_nobody(llm: LLM) -> None:
    for call in (
        lambda: llm.generate("a", use_tqdm=False),
        lambda: llm.classify("a", use_tqdm=False),
        lambda: llm.embed([["a"]], use_tqdm=False),
        lambda: llm.embed([[999]], use_tqdm=False),
        lambda: llm.embed([[]], use_tqdm=False),
        lambda: llm.embed("a", truncate_prompt_tokens=99, use_tqdm=False),
        lambda: llm.embed({"prompt_token_ids": [4, 5], "token_type_ids": [1, 0]}, use_tqdm=False),
        lambda: llm.score("a", [], use_tqdm=False),
        lambda: PoolingParams(dimensions=0),
        lambda: PoolingParams(task="sing"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequestError):
            call()
    assert vectors(llm, "a").shape == (1, 8)


def test_generating_models_refuse_pooling_unless_told_to_pool(tmp_path: Path, tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), **KV, max_model_len=64)
    with pytest.raises(InvalidRequestError, match="runner='pooling'"):
        llm.embed("a", use_tqdm=False)
    with pytest.raises(ConfigError, match="pooler_config"):
        resolve(EngineArgs(model=str(tiny_llama), pooler_config={"pooling_type": "MEAN"}))
    pooling = LLM(str(tiny_llama), **KV, max_model_len=64, runner="pooling")
    assert np.isclose(np.linalg.norm(vectors(pooling, "hello")), 1.0)


def test_a_model_that_cannot_generate_is_told_as_a_pooling_model(bert: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"BertModel.* is a pooling model"):
        resolve(EngineArgs(model=str(bert), runner="generate"))


def test_a_start_without_a_cache_speaks_of_none(bert: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "octavo"):
        LLM(str(bert))
    assert "no KV cache" in caplog.text
    assert "KV cache: up to" not in caplog.text


def test_the_longer_text_of_a_pair_is_cut_first() -> None:
    assert pair_lengths(3, 20, 10) == [3, 7]
    assert pair_lengths(20, 3, 10) == [7, 3]
    assert pair_lengths(20, 30, 11) == [5, 6]
    assert pair_lengths(30, 20, 11) == [6, 5]
