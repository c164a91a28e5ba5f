"""Models over several ranks: the bits of one process, for every architecture, weight format and arrangement."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from transformers import LlamaConfig, PreTrainedModel

from octavo import LLM, SamplingParams
from octavo.attention.context import ForwardContext
from octavo.distributed.connect import connect
from octavo.distributed.place import WorkerPlace
from octavo.distributed.rendezvous import Rendezvous
from octavo.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.models.decoder_config import DecoderConfig
from octavo.models.llama import read_config
from octavo.models.registry import build_model, check_parallel_sizes
from octavo.models.sharing import ModelShare, head_shares, stage_layers
from octavo.ops.interface import Float, Ops
from octavo.ops.select import native_facts
from octavo.types.structured_params import StructuredOutputsParams
from tests.distributed.thread_executor import ThreadExecutor
from tests.loader.gguf_export import FAMILIES, write_gguf
from tests.loader.gguf_export import random_model as random_gguf_model
from tests.models.harness import TINY, ArrayWeights, PagedRun, build, hf_config, random_model, tensors_of
from tests.models.test_architectures import CONFIGS
from tests.quantization.test_checkpoints import FORMATS, generate, quantise_folder
from tests.tiny_models import llama_config, write_tiny_model

pytestmark = pytest.mark.skipif(native_facts() is None, reason="needs the native extension")
TOKENS = np.random.default_rng(5).integers(0, 97, 45).tolist()


def native() -> Ops:
    from octavo.ops.native import NativeOps

    return NativeOps()


class StageRun(PagedRun):
    """A stage: takes hidden states from the one before, and gives logits or hidden states."""

    def compute(self, token_ids, positions, metadata) -> Float:
        hidden = None
        if self.pipeline.rank > 0:
            hidden = np.empty((len(token_ids), self.model.facts.hidden_size), np.float32)
            self.pipeline.receive(hidden)
        context = ForwardContext(self.ops, self.caches, metadata, hidden=hidden)
        hidden = self.model.forward(token_ids, positions, context)
        if self.pipeline.rank < self.pipeline.size - 1:
            self.pipeline.send(hidden)
            return hidden
        return self.model.compute_logits(hidden, self.ops)


def parallel_logits(model: PreTrainedModel, tp_size: int, pp_size: int) -> list[Float]:
    """Return the logits that each rank of the last stage computes, in two chunks."""
    meeting = Rendezvous()
    place = WorkerPlace(tp_size=tp_size, pp_size=pp_size, address=meeting.address, timeout_s=20)

    def run(rank: int) -> Float:
        groups = connect(replace(place, rank=rank))
        share = ModelShare(groups.tensor, groups.pipeline.rank, groups.pipeline.size)
        ours = build_model(hf_config(model), ArrayWeights(tensors_of(model)), native(), 128, share)
        stage = StageRun(ours, native())
        stage.pipeline = groups.pipeline
        logits = stage.run(TOKENS, [17, 28])
        groups.close()
        return logits

    try:
        with ThreadPoolExecutor(place.world_size) as pool:
            return list(pool.map(run, range(place.world_size)))[place.output_rank :]
    finally:
        meeting.remove()


@pytest.mark.parametrize("name", CONFIGS)
def test_two_ranks_or_two_stages_give_the_bits_of_one_process(name: str) -> None:
    model = random_model(CONFIGS[name]())
    expected = PagedRun(build(model, native()), native()).run(TOKENS)
    for tp_size, pp_size in ((2, 1), (1, 2)):
        for logits in parallel_logits(model, tp_size, pp_size):
            np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize(
    ("sizes", "heads"),
    [
        ((3, 1), (6, 3)),
        ((2, 1), (9, 3)),
        ((3, 1), (10, 2)),
        ((4, 1), (8, 2)),
        ((4, 1), (6, 2)),
        ((2, 3), (4, 1)),
        ((3, 2), (7, 1)),
    ],
)
def test_heads_and_vocabularies_that_do_not_divide_evenly(sizes: tuple[int, int], heads: tuple[int, int]) -> None:
    num_heads, num_kv = heads
    config = LlamaConfig(
        **{**TINY, "num_attention_heads": num_heads, "num_key_value_heads": num_kv, "hidden_size": 8 * num_heads},
        head_dim=8,
    )
    model = random_model(config)
    expected = PagedRun(build(model, native()), native()).run(TOKENS)
    for logits in parallel_logits(model, *sizes):
        np.testing.assert_array_equal(logits, expected)


def parallel(tp_size: int = 1, pp_size: int = 1) -> dict[str, Any]:
    return {
        "tensor_parallel_size": tp_size,
        "pipeline_parallel_size": pp_size,
        "distributed_executor_backend": ThreadExecutor,
    }


@pytest.mark.native_ops
@pytest.mark.parametrize("name", FORMATS)
def test_quantised_checkpoints_are_divided_without_rounding(tmp_path: Path, name: str) -> None:
    folder = write_tiny_model(tmp_path / "model", llama_config(hidden_size=64, intermediate_size=96))
    quantise_folder(folder, name)
    assert generate(folder, **parallel(tp_size=2)) == generate(folder)


@pytest.mark.native_ops
@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}, {"quantization": "int4"}, {"enforce_eager": True}])
def test_float_checkpoints_however_they_are_kept(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = write_tiny_model(tmp_path / "model", llama_config(hidden_size=64, intermediate_size=96))
    expected = generate(folder, **options)
    for arrangement in (parallel(tp_size=2), parallel(pp_size=2), parallel(2, 2)):
        assert generate(folder, **options, **arrangement) == expected


@pytest.mark.native_ops
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q5_1", "Q8_0"])
def test_gguf_files(tmp_path: Path, kind: str) -> None:
    write_gguf(
        random_gguf_model(FAMILIES["llama"].config()),
        FAMILIES["llama"],
        tmp_path / "model.gguf",
        gguf.GGMLQuantizationType[kind],
    )
    options = {"skip_tokenizer_init": True}
    assert generate(tmp_path / "model.gguf", **options, **parallel(2, 2)) == generate(
        tmp_path / "model.gguf", **options
    )


def mixed_requests(folder: Path, **options: Any) -> list[Any]:
    """Return what requests of every kind get, with chunks of prompts, shared prefixes and too few blocks for all."""
    llm = LLM(
        str(folder), block_size=4, num_gpu_blocks_override=24, max_num_batched_tokens=16, max_num_seqs=6, **options
    )
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0, "prompt_logprobs": 2, "logprobs": 1},
        {"temperature": 1.0, "top_p": 0.9, "presence_penalty": 0.5, "logit_bias": {7: 2.0}},
        {"temperature": 1.0, "structured_outputs": StructuredOutputsParams(regex="[ab]{4,9}")},
        {"temperature": 0.7, "top_k": 20, "n": 2, "min_tokens": 3},
        {"temperature": 0.0, "repetition_penalty": 1.3},
    ]
    prompts = [{"prompt_token_ids": [9, 8, 7, 6, 5, 4, 3, *range(10, 10 + 6 * index)]} for index in range(5)]
    params = [SamplingParams(max_tokens=18, seed=index, ignore_eos=True, **kind) for index, kind in enumerate(kinds)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [
        (output.prompt_logprobs, [(o.token_ids, o.finish_reason, o.logprobs) for o in output.outputs])
        for output in outputs
    ]


@pytest.mark.native_ops
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (1, 3), (2, 2)])
def test_requests_of_every_kind(tmp_path: Path, sizes: tuple[int, int]) -> None:
    folder = write_tiny_model(
        tmp_path / "model", llama_config(hidden_size=64, intermediate_size=96, num_hidden_layers=3)
    )
    assert mixed_requests(folder, **parallel(*sizes)) == mixed_requests(folder)


@pytest.mark.native_ops
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (2, 2)])
def test_drafts_are_verified_alike_by_all_ranks_and_stages(tmp_path: Path, sizes: tuple[int, int]) -> None:
    folder = write_tiny_model(tmp_path / "model", llama_config(hidden_size=64, intermediate_size=96))
    expected = mixed_requests(folder)
    for drafts in ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}, {"method": "suffix"}):
        assert mixed_requests(folder, speculative_config=drafts, **parallel(*sizes)) == expected


def decoder(num_heads: int = 4, num_kv: int = 2, num_layers: int = 3) -> DecoderConfig:
    sizes = {"num_attention_heads": num_heads, "num_key_value_heads": num_kv, "num_hidden_layers": num_layers}
    return read_config(hf_config(random_model(LlamaConfig(**{**TINY, **sizes, "hidden_size": 16 * num_heads}))))


@pytest.mark.parametrize(("num_heads", "num_kv"), [(9, 3), (8, 2), (6, 1), (4, 4), (14, 2), (12, 3)])
def test_every_query_head_is_computed_once_beside_its_keys(num_heads: int, num_kv: int) -> None:
    config = decoder(num_heads, num_kv)
    for size in range(1, num_heads + 1):
        shares = head_shares(config, size)
        assert [head for own in shares for head in own.query] == list(range(num_heads))
        for own in shares:
            counts = Counter(head * num_kv // num_heads for head in own.query)
            assert list(own.kv) == sorted(counts)
            assert own.heads_of_kv(num_heads // num_kv) == [counts[head] for head in own.kv]
        # nobody keeps more of the cache for it than where whole key/value heads are divided
        assert max(len(own.kv) for own in shares) <= max(-(-num_kv // size), 2 if size > num_kv else 1)


def test_query_heads_are_divided_evenly_where_key_value_heads_are_odd() -> None:
    assert [len(own.query) for own in head_shares(decoder(9, 3), 2)] == [4, 5]
    assert [len(own.query) for own in head_shares(decoder(14, 2), 3)] == [4, 5, 5]
    assert [len(own.query) for own in head_shares(decoder(32, 8), 3)] == [8, 12, 12]


@pytest.mark.parametrize("num_layers", [1, 3, 30])
def test_stages_have_all_layers_in_order_and_none_is_empty(num_layers: int) -> None:
    config = replace(decoder(), layers=decoder().layers[:1] * num_layers)
    for size in range(1, num_layers + 1):
        stages = [stage_layers(config, size, stage) for stage in range(size)]
        assert [layer for own in stages for layer in own] == list(range(num_layers))
        assert all(stages)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((5, 1), "tensor_parallel_size=5 exceeds the 4 query heads of LlamaForCausalLM"),
        ((1, 4), "pipeline_parallel_size=4, but LlamaForCausalLM has 3 layers"),
    ],
)
def test_impossible_sizes_are_refused_with_the_numbers(sizes: tuple[int, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_parallel_sizes(hf_config(random_model(LlamaConfig(**TINY))), *sizes)


def test_what_one_worker_must_do_alone_is_refused_at_start(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", llama_config(hidden_size=64, intermediate_size=96))
    draft = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 3}
    with pytest.raises(ConfigError, match="exceeds the 4 query heads"):
        generate(folder, **parallel(tp_size=7))
    with pytest.raises(UnsupportedError, match="method 'draft_model' needs one worker, not 2"):
        generate(folder, speculative_config=draft, **parallel(pp_size=2))


def refuses(model: PreTrainedModel, stage: int, odd: str) -> bool:
    weights = ArrayWeights({**tensors_of(model), odd: np.zeros(4, np.float32)})
    try:
        build_model(hf_config(model), weights, native(), 128, ModelShare(stage=stage, num_stages=2))
    except CheckpointError as error:
        assert odd in str(error)
        return True
    return False


def test_each_stage_passes_over_what_the_others_read_and_refuses_what_nobody_does() -> None:
    model = random_model(LlamaConfig(**TINY))
    assert not any(refuses(model, stage, "model.layers.0.self_attn.rotary_emb.inv_freq") for stage in (0, 1))
    assert [refuses(model, stage, "model.layers.0.odd.weight") for stage in (0, 1)] == [True, False]
    assert [refuses(model, stage, "model.layers.2.odd.weight") for stage in (0, 1)] == [False, True]
    for odd in ("model.layers.7.odd.weight", "model.odd.weight", "odd.weight"):
        assert [refuses(model, stage, odd) for stage in (0, 1)] == [True, True]
