"""Adapters in an engine: PEFT's formula, independence of neighbours, caches by content, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.config import LoadConfig
from octavo.errors import CheckpointError, ConfigError, InvalidRequestError, ModelNotFoundError, UnsupportedError
from octavo.loader.resolve import open_checkpoint
from octavo.lora.request import LoRARequest
from octavo.models.adapting import adaptable_modules
from octavo.models.registry import describe_decoder
from tests.engine.processes import comparable
from tests.lora.adapters import PROJECTIONS, merge, rename_tensors, write_adapter
from tests.tiny_models import gemma3_config, llama_config, write_tiny_model

SMALL: dict[str, Any] = {
    "max_model_len": 256,
    "num_gpu_blocks_override": 128,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
}
PROMPTS = [[5 + (7 * i + 3 * j) % 290 for j in range(20 + 9 * i)] for i in range(6)]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.8, seed=3, logprobs=3, detokenize=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("lora") / "model", llama_config())


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    folder = tmp_path_factory.mktemp("adapters")
    return [
        LoRARequest(f"a{i}", i + 1, str(write_adapter(folder / str(i), model, i, modules, r=2 + 3 * i)))
        for i, modules in enumerate((PROJECTIONS, (*PROJECTIONS, "lm_head"), PROJECTIONS, ("lm_head",)))
    ]


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(str(model), enable_lora=True, max_loras=2, max_lora_rank=16, max_cpu_loras=3, **SMALL)


def results(llm: LLM, prompts: list[list[int]], lora_request: Any = None, params: SamplingParams = PARAMS) -> list[Any]:
    return [comparable(output) for output in llm.generate(prompts, params, use_tqdm=False, lora_request=lora_request)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True, "lora_alpha": 3},
        {"rank_pattern": {"q_proj": 7, "down_proj": 2}, "alpha_pattern": {"q_proj": 16}},
        {"projections": ("k_proj", "up_proj"), "r": 5},
    ],
)
@pytest.mark.parametrize("config", [llama_config(), gemma3_config()], ids=["llama", "gemma3"])
def test_an_adapter_equals_merged_weights(config, options, tmp_path):
    model = write_tiny_model(tmp_path / "model", config)
    adapter = write_adapter(tmp_path / "adapter", model, **options)
    merged = LLM(str(merge(model, adapter, tmp_path / "merged")), **SMALL)
    adapted = LLM(str(model), enable_lora=True, **SMALL)
    params = SamplingParams(max_tokens=6, temperature=0, logprobs=0, prompt_logprobs=0, detokenize=False)
    request = LoRARequest("one", 1, str(adapter))
    expected = merged.generate(PROMPTS[:2], params, use_tqdm=False)
    plain = adapted.generate(PROMPTS[:2], params, use_tqdm=False)
    for want, got, base in zip(
        expected, adapted.generate(PROMPTS[:2], params, use_tqdm=False, lora_request=request), plain, strict=True
    ):
        assert got.outputs[0].token_ids == want.outputs[0].token_ids
        assert prompt_logprobs(got) == pytest.approx(prompt_logprobs(want), abs=2e-3)
        assert prompt_logprobs(got) != pytest.approx(prompt_logprobs(base), abs=0.1)
        assert got.lora_request == request and base.lora_request is None


@pytest.mark.parametrize("config", [llama_config(), gemma3_config()], ids=["llama", "gemma3"])
def test_what_adapters_may_change_is_known_without_weights(config, tmp_path):
    folder = str(write_tiny_model(tmp_path, config))
    llm = LLM(folder, enable_lora=True, **SMALL)
    (parts,) = llm.collective_rpc(lambda worker: worker.model_runner.adapters._store._parts)
    checkpoint = open_checkpoint(folder, LoadConfig())
    shapes = adaptable_modules(*describe_decoder(checkpoint.config))
    assert shapes == {name: part.shape for name, part in parts.items()} and len(shapes) > 14


def prompt_logprobs(output) -> list[float]:
    return [next(iter(position.values())).logprob for position in output.prompt_logprobs[1:]]


@pytest.mark.native_ops
def test_neighbours_with_other_adapters_change_no_bit(model, llm, adapters):
    requests = [adapters[0], None, adapters[1], adapters[2], None, adapters[3]]
    alone = [results(llm, [prompt], request)[0] for prompt, request in zip(PROMPTS, requests, strict=True)]
    llm.reset_prefix_cache()
    assert results(llm, PROMPTS, requests) == alone
    without = LLM(str(model), **SMALL)
    plain = results(without, PROMPTS)
    assert [plain[1], plain[4]] == [alone[1], alone[4]]
    assert len({str(one) for one in results(llm, PROMPTS[:1] * 3, [None, adapters[0], adapters[1]])}) == 3
    eager = LLM(str(model), enable_lora=True, max_loras=4, enforce_eager=True, **SMALL)
    assert results(eager, PROMPTS, requests) == alone


@pytest.mark.native_ops
@pytest.mark.parametrize(
    "options",
    [{"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, {"num_gpu_blocks_override": 12}],
)
def test_adapters_work_with_guesses_and_with_preemption(model, llm, adapters, options):
    prompts = [[7, 8, 9, 10] * 6, [11, 12, 13] * 8, [7, 8, 9, 10] * 6]
    requests = [adapters[0], adapters[1], None]
    params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.7, seed=1, n=2, detokenize=False)
    other = LLM(str(model), **{**SMALL, "enable_lora": True, "max_loras": 2, **options})
    assert results(other, prompts, requests, params) == results(llm, prompts, requests, params)


def test_the_prefix_cache_knows_adapters_by_content(llm, model, adapters, tmp_path):
    prompt, params = [list(range(40, 100))], SamplingParams(max_tokens=1, detokenize=False)

    def num_cached(lora_request):
        return llm.generate(prompt, params, use_tqdm=False, lora_request=lora_request)[0].num_cached_tokens

    llm.reset_prefix_cache()
    assert [num_cached(request) for request in (None, adapters[0], adapters[1])] == [0, 0, 0]
    assert [num_cached(request) for request in (None, adapters[0], adapters[1])] == [48, 48, 48]
    same = write_adapter(tmp_path / "same", model, seed=0, r=2)
    assert num_cached(LoRARequest("other name", 77, str(same))) == 48
    write_adapter(tmp_path / "same", model, seed=5, r=2)
    assert num_cached(LoRARequest("other name", 77, str(same), load_inplace=True)) == 0
    assert num_cached(LoRARequest("other name", 77, str(same))) == 48


def test_an_adapter_can_be_replaced_in_place(llm, model, tmp_path):
    path = write_adapter(tmp_path / "adapter", model, seed=11)
    request = LoRARequest("changing", 50, str(path))
    first = results(llm, PROMPTS[:1], request)
    write_adapter(path, model, seed=12)
    assert results(llm, PROMPTS[:1], request) == first
    second = results(llm, PROMPTS[:1], LoRARequest("changing", 50, str(path), load_inplace=True))
    assert second != first
    assert results(llm, PROMPTS[:1], request) == second


@pytest.mark.native_ops
def test_a_reload_in_place_leaves_running_requests_as_they_are(llm, model, tmp_path):
    path = write_adapter(tmp_path / "adapter", model, seed=21)
    request, again = (LoRARequest("changing", 51, str(path), load_inplace=anew) for anew in (False, True))
    first = results(llm, PROMPTS[:1], request)
    llm.enqueue(PROMPTS[:1], PARAMS, lora_request=request)
    for _ in range(3):
        llm.llm_engine.step()
    write_adapter(path, model, seed=22)
    llm.enqueue(PROMPTS[:1], PARAMS, lora_request=again)
    together = [comparable(output) for output in llm.wait_for_completion(use_tqdm=False)]
    assert together == first + results(llm, PROMPTS[:1], request) and together[0] != together[1]


def test_more_adapters_than_slots_and_memory_take_turns(llm, model, adapters):
    roomy = LLM(str(model), enable_lora=True, max_loras=4, **SMALL)
    requests = [adapters[i % 4] for i in range(12)]
    params = SamplingParams(max_tokens=4, temperature=0, detokenize=False)
    prompts = [PROMPTS[i % 6] for i in range(12)]
    assert results(llm, prompts, requests, params) == results(roomy, prompts, requests, params)


def bad_folder(kind: str, folder: Path, model: Path) -> Path:
    if kind == "prefix":
        rename_tensors(write_adapter(folder, model), "base_model.model.", "model.")
    elif kind == "module":
        rename_tensors(write_adapter(folder, model), "q_proj", "query")
    elif kind == "layer":
        rename_tensors(write_adapter(folder, model), "layers.0.", "layers.7.")
    elif kind == "half":
        rename_tensors(write_adapter(folder, model), "0.mlp.up_proj.lora_B", "9.mlp.up_proj.lora_B")
    elif kind == "embedding":
        rename_tensors(
            write_adapter(folder, model), "layers.0.self_attn.q_proj.lora_A.weight", "embed_tokens.lora_embedding_A"
        )
    elif kind == "size":
        bigger = write_tiny_model(folder.parent / "bigger", llama_config(hidden_size=96))
        write_adapter(folder, bigger)
    return folder


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("prefix", CheckpointError, "model.layers.0.mlp.down_proj.lora_A.weight"),
        ("module", CheckpointError, "self_attn.query"),
        ("layer", CheckpointError, r"layers\.7\..* in layers 0 to 1"),
        ("half", CheckpointError, "only lora_"),
        ("embedding", CheckpointError, "embed_tokens has only lora_A"),
        ("size", CheckpointError, "96 inputs"),
        ("missing", ModelNotFoundError, "adapter_config.json"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(kind, error, text, llm, model, tmp_path):
    folder = bad_folder(kind, tmp_path / "adapter", model)
    with pytest.raises(error, match=text):
        results(llm, PROMPTS[:1], LoRARequest("bad", 60, str(folder)))
    assert results(llm, PROMPTS[:1])


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"r": 17}, "rank 17, but max_lora_rank=16"),
    ],
)
def test_what_is_not_built_is_refused_by_name(config, text, llm, model, tmp_path):
    folder = write_adapter(tmp_path / "adapter", model, **config)
    with pytest.raises(UnsupportedError, match=text):
        results(llm, PROMPTS[:1], LoRARequest("bad", 61, str(folder)))


def test_options_that_do_not_fit_are_refused(model, adapters):
    for options, error, text in (
        ({"max_loras": 0}, ConfigError, "max_loras"),
        ({"max_lora_rank": 1000}, ConfigError, "max_lora_rank"),
        ({"max_loras": 3, "max_cpu_loras": 2}, ConfigError, "max_cpu_loras"),
    ):
        with pytest.raises(error, match=text):
            LLM(str(model), enable_lora=True, **{**SMALL, **options})
    with pytest.raises(InvalidRequestError, match="enable_lora"):
        results(LLM(str(model), **SMALL), PROMPTS[:1], adapters[0])
    with pytest.raises(InvalidRequestError, match="lora_int_id"):
        LoRARequest("a", 0, "x")


def test_the_scheduler_names_the_adapters_that_run_and_wait(model, adapters):
    llm = LLM(str(model), enable_lora=True, max_loras=1, **SMALL)
    llm.enqueue(PROMPTS[:3], PARAMS, lora_request=[adapters[0], adapters[1], None])
    llm.llm_engine.step()
    (stats,) = llm.llm_engine.engine_core.scheduler_stats()
    assert (stats.running_adapters, stats.waiting_adapters) == (["a0"], ["a1"])
    llm.wait_for_completion(use_tqdm=False)
    (stats,) = llm.llm_engine.engine_core.scheduler_stats()
    assert (stats.running_adapters, stats.waiting_adapters) == ([], [])
