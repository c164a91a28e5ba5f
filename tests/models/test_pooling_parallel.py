"""Pooling models over several ranks and stages: the bits of one process, for every architecture and head."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from octavo import LLM
from octavo.distributed.connect import connect
from octavo.distributed.place import WorkerPlace
from octavo.distributed.rendezvous import Rendezvous
from octavo.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.models.pooling_registry import build_pooling_model, check_pooling_sizes
from octavo.models.sharing import ModelShare
from octavo.ops.interface import Float
from octavo.ops.select import native_facts
from octavo.ops.tape import ForwardInputs, TapeLimits
from octavo.worker.bound_model import bind_model
from octavo.worker.input_builder import metadata_without_cache
from tests.distributed.thread_executor import ThreadExecutor
from tests.models.harness import ArrayWeights, PagedRun, hf_config, tensors_of
from tests.models.test_parallel import native
from tests.models.test_pooling_models import (
    DECODERS,
    MODELS,
    build,
    gte_first_names,
    make,
    run_packed,
    states_of,
    texts,
)
from tests.tiny_models import llama_config, write_tiny_model

pytestmark = pytest.mark.skipif(native_facts() is None, reason="needs the native extension")


def over_ranks(model: PreTrainedModel, tp_size: int, pp_size: int, uses_tape: bool, tensors: Any = None) -> list[Float]:
    """Return the hidden states of all texts in one step, followed by the head's outputs of each, rank by rank."""
    meeting = Rendezvous()
    place = WorkerPlace(tp_size=tp_size, pp_size=pp_size, address=meeting.address, timeout_s=20)
    lengths = [len(ids) for ids in texts()]
    query_start = np.cumsum([0, *lengths], dtype=np.int32)
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    token_ids = np.concatenate([np.asarray(ids, np.int32) for ids in texts()])

    def run(rank: int) -> Float:
        groups = connect(replace(place, rank=rank))
        stage, num_stages = groups.pipeline.rank, groups.pipeline.size
        share = ModelShare(groups.tensor, stage, num_stages)
        weights = ArrayWeights(tensors_of(model) if tensors is None else tensors)
        ours = build_pooling_model(hf_config(model), weights, (), native(), 128, share)
        size = ours.facts.hidden_size
        limits = TapeLimits(256, 256, 256, size, 1, takes_hidden=stage > 0) if uses_tape else None
        bound = bind_model(ours, native(), {}, [()], limits, share.is_last and bool(ours.steps))
        hidden = None
        if stage > 0:
            hidden = np.empty((len(token_ids), size), np.float32)
            groups.pipeline.receive(hidden)
        rows = np.arange(len(token_ids) if share.is_last else 0, dtype=np.int32)
        inputs = ForwardInputs(token_ids, positions, rows, [metadata_without_cache(query_start)], hidden)
        hidden = bound.forward(inputs).copy()
        if not share.is_last:
            groups.pipeline.send(hidden)
        elif ours.steps:
            hidden = np.concatenate([hidden.ravel(), bound.logits(hidden).ravel()])
        groups.close()
        return hidden

    try:
        with ThreadPoolExecutor(place.world_size) as pool:
            return list(pool.map(run, range(place.world_size)))[place.output_rank :]
    finally:
        meeting.remove()


@pytest.mark.parametrize("name", MODELS)
def test_encoders_give_the_bits_of_one_process(name: str) -> None:
    model = make(MODELS[name])
    alone = build(model, native())
    expected = np.concatenate(run_packed(alone, native(), texts()))
    if alone.steps:
        expected = np.concatenate([expected.ravel(), alone.compute_logits(expected, native()).ravel()])
    for tp_size, pp_size, uses_tape in ((2, 1, True), (3, 1, False), (1, 2, True), (2, 2, False)):
        if pp_size > model.config.num_hidden_layers:
            continue
        for result in over_ranks(model, tp_size, pp_size, uses_tape):
            np.testing.assert_array_equal(result, expected)


def test_ranks_take_their_parts_of_fused_projections_in_either_order() -> None:
    model = make(MODELS["gte-score"])
    (expected,) = over_ranks(model, 1, 1, False, states_of(model))
    for result in over_ranks(model, 3, 1, False, gte_first_names(states_of(model))):
        np.testing.assert_array_equal(result, expected)


def vectors(folder: Path, **options: Any) -> list[list[float]]:
    """Return embeddings and per-token ones of texts longer and shorter than a step, some with the same beginning."""
    sizes = {"max_num_batched_tokens": 16, "block_size": 4, "max_num_seqs": 6, "num_gpu_blocks_override": 40}
    llm = LLM(str(folder), runner="pooling", **sizes, **options)
    prompts: Any = [{"prompt_token_ids": [9, 8, 7, 6, 5, *range(10, 10 + 9 * index)]} for index in range(5)]
    results = []
    for task in ("embed", "token_embed"):
        outputs = llm.encode(prompts, pooling_task=task, use_tqdm=False)
        results += [np.asarray(output.outputs.data).ravel().tolist() for output in outputs]
    llm.llm_engine.shutdown()
    return results


@pytest.mark.native_ops
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (2, 2)])
def test_an_engine_embeds_alike_however_many_workers_it_has(tmp_path: Path, sizes: tuple[int, int]) -> None:
    config = llama_config(hidden_size=64, intermediate_size=96, num_hidden_layers=3, tie_word_embeddings=True)
    folder = write_tiny_model(tmp_path / "model", config)
    options = {
        "tensor_parallel_size": sizes[0],
        "pipeline_parallel_size": sizes[1],
        "distributed_executor_backend": ThreadExecutor,
    }
    assert vectors(folder, **options) == vectors(folder)


def test_stages_divide_an_encoders_layers_and_refuse_tensors_that_nobody_reads() -> None:
    model = make(MODELS["bert-classes"])
    tensors = tensors_of(model)
    for stage, own, other in ((0, 0, 2), (1, 2, 0)):
        for index, is_refused in ((own, True), (other, False)):
            odd = f"bert.encoder.layer.{index}.odd.weight"
            weights = ArrayWeights({**tensors, odd: np.zeros(4, np.float32)})
            share = ModelShare(stage=stage, num_stages=2)
            if is_refused:
                with pytest.raises(CheckpointError, match=odd):
                    build_pooling_model(hf_config(model), weights, (), native(), 128, share)
            else:
                build_pooling_model(hf_config(model), weights, (), native(), 128, share)


def test_sizes_that_cannot_be_are_refused_with_the_numbers() -> None:
    bert, both_ways = (hf_config(make(MODELS[name])) for name in ("bert", "gemma3-both-ways"))
    with pytest.raises(ConfigError, match="tensor_parallel_size=5 exceeds the 4 query heads of BertModel"):
        check_pooling_sizes(bert, 5, 1, 1)
    with pytest.raises(ConfigError, match="pipeline_parallel_size=4, but BertModel has 3 layers"):
        check_pooling_sizes(bert, 1, 4, 1)
    with pytest.raises(UnsupportedError, match="BertModel has none"):
        check_pooling_sizes(bert, 2, 1, 2)
    with pytest.raises(UnsupportedError, match="tokens that see later ones"):
        check_pooling_sizes(both_ways, 4, 1, 2)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_with_heads_give_the_bits_of_one_process(name: str) -> None:
    model = make(DECODERS[name])
    ids = texts()[3]
    expected = PagedRun(build(model, native()), native()).run(ids)
    meeting = Rendezvous()
    place = WorkerPlace(tp_size=2, address=meeting.address, timeout_s=20)

    def run(rank: int) -> Float:
        groups = connect(replace(place, rank=rank))
        weights = ArrayWeights(tensors_of(model))
        ours = build_pooling_model(hf_config(model), weights, (), native(), 128, ModelShare(groups.tensor))
        values = PagedRun(ours, native()).run(ids, chunks=[20, 1, 40])
        groups.close()
        return values

    try:
        with ThreadPoolExecutor(2) as pool:
            for values in pool.map(run, range(2)):
                np.testing.assert_array_equal(values, expected)
    finally:
        meeting.remove()
