"""LLM on a tiny model's files: options by keyword or EngineArgs, the whole path from a folder to text."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo import LLM, BeamSearchParams, EngineArgs, SamplingParams
from octavo.errors import ConfigError, InvalidRequestError, ModelNotFoundError, UnsupportedError
from tests.tiny_models import llama_config, write_tiny_model

PROMPT = [5, 6, 7, 8]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
OPTIONS = {"max_model_len": 64, "kv_cache_memory_bytes": 2**22}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("llama"), llama_config()))


def tokens(llm: LLM) -> list[int]:
    return list(llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].outputs[0].token_ids)


def test_keyword_options_and_engine_args_start_the_same_engine(folder):
    by_keywords = LLM(folder, **OPTIONS)
    by_args = LLM.from_engine_args(EngineArgs(model=folder, **OPTIONS))
    assert by_keywords.llm_engine.config == by_args.llm_engine.config
    assert tokens(by_keywords) == tokens(by_args)


def test_without_a_tokenizer_ids_go_in_and_come_out(folder):
    llm = LLM(folder, skip_tokenizer_init=True, **OPTIONS)
    output = llm.generate(PROMPT, GREEDY, use_tqdm=False)[0]
    assert output.outputs[0].text == ""
    assert output.outputs[0].token_ids == tokens(LLM(folder, **OPTIONS))
    with pytest.raises(InvalidRequestError, match="skip_tokenizer_init"):
        llm.generate("text", GREEDY, use_tqdm=False)


def test_an_open_length_is_fitted_to_the_memory(folder):
    llm = LLM(folder, max_model_len=-1, kv_cache_memory_bytes=2**16)
    assert 2 <= llm.model_config.max_model_len < 512
    whole = [1] * (llm.model_config.max_model_len - 1)
    assert len(llm.generate(whole, GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 1


def test_a_step_that_fails_in_the_worker_leaves_a_usable_engine(folder, monkeypatch):
    llm = LLM(folder, **OPTIONS, enforce_eager=True)  # a replayed tape calls no Python
    expected = tokens(llm)
    (model_class,) = llm.apply_model(type)
    forward, calls = model_class.forward, []

    def fail_on_third_call(*args):
        calls.append(args)
        if len(calls) == 3:
            raise MemoryError("no room")
        return forward(*args)

    monkeypatch.setattr(model_class, "forward", fail_on_third_call)
    outputs = llm.generate([PROMPT, [9, 9]], GREEDY, use_tqdm=False)
    assert {output.outputs[0].stop_reason for output in outputs} == {"MemoryError: no room"}
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 2]
    assert tokens(llm) == expected


def test_wrong_options_and_missing_models_are_named(folder, tmp_path):
    with pytest.raises(ConfigError, match="max_seqs"):
        LLM(folder, max_seqs=5)
    with pytest.raises(ConfigError, match="max_model_len=100000"):
        LLM(folder, max_model_len=100000)
    with pytest.raises(ModelNotFoundError):
        LLM(str(tmp_path / "nothing-here"))


def test_ctrl_c_in_the_model_ends_the_call_after_the_step_and_frees_everything(folder, monkeypatch):
    llm = LLM(folder, **OPTIONS, enforce_eager=True)  # a replayed tape calls no Python
    expected = tokens(llm)
    (model_class,) = llm.apply_model(type)
    forward, calls = model_class.forward, []

    def press_ctrl_c_on_third_call(*args):
        calls.append(args)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return forward(*args)

    monkeypatch.setattr(model_class, "forward", press_ctrl_c_on_third_call)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[i, i] for i in range(1, 30)], GREEDY, use_tqdm=False)
    assert len(calls) == 3
    usage = [m.value for m in llm.get_metrics() if m.name.endswith(("kv_cache_usage_perc", "_running", "_waiting"))]
    assert usage == [0, 0, 0]
    assert tokens(llm) == expected


def test_a_beam_of_one_is_the_greedy_path_and_a_wider_one_is_at_least_as_likely(folder):
    llm = LLM(folder, **OPTIONS)
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=0, ignore_eos=True)
    greedy = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0]
    search = {"max_tokens": 8, "ignore_eos": True, "length_penalty": 0.0}
    (narrow,) = llm.beam_search(PROMPT, BeamSearchParams(beam_width=1, **search))
    assert narrow.sequences[0].tokens == [*PROMPT, *greedy.token_ids]
    assert narrow.sequences[0].cum_logprob == pytest.approx(greedy.cumulative_logprob)
    (wide,) = llm.beam_search(PROMPT, BeamSearchParams(beam_width=5, **search))
    scores = [sequence.cum_logprob for sequence in wide.sequences]
    assert len(scores) == 5 and scores == sorted(scores, reverse=True)
    assert scores[0] >= greedy.cumulative_logprob - 1e-5


def test_workers_and_the_model_can_be_reached(folder):
    llm = LLM(folder, **OPTIONS)
    assert llm.apply_model(lambda model: model) == llm.collective_rpc("get_model")
    assert llm.collective_rpc(lambda worker, x, y: x * y, args=(6,), kwargs={"y": 7}) == [42]


@pytest.mark.parametrize("max_model_len", [2, 3, 31])
def test_the_shortest_contexts_start_and_answer(folder, max_model_len):
    llm = LLM(folder, **{**OPTIONS, "max_model_len": max_model_len})
    output = llm.generate([[5]], SamplingParams(max_tokens=None, ignore_eos=True), use_tqdm=False)[0].outputs[0]
    assert len(output.token_ids) == max_model_len - 1


@pytest.mark.parametrize(
    "options", [{"kv_cache_memory_bytes": 2**62}, {"num_gpu_blocks_override": 2**40, "kv_cache_memory_bytes": None}]
)
def test_a_cache_beyond_the_machines_memory_is_refused(folder, options):
    with pytest.raises(ConfigError, match=r"GiB.*of memory"):
        LLM(folder, **{**OPTIONS, **options})


def test_threads_may_share_an_llm(folder):
    llm = LLM(folder, **OPTIONS)
    prompts = [[5 + i] * (3 + i) for i in range(6)]
    params = [SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)] * len(prompts)

    def texts() -> list[str]:
        return [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]

    expected = texts()
    with ThreadPoolExecutor(4) as pool:
        assert [task.result() for task in [pool.submit(texts) for _ in range(8)]] == [expected] * 8


@pytest.mark.parametrize("method", ["absent", "rank", 5])
def test_a_worker_method_that_is_not_there_is_named(folder, method):
    llm = LLM(folder, **OPTIONS)
    with pytest.raises(UnsupportedError, match=str(method)):
        llm.collective_rpc(method)


@pytest.mark.parametrize("option", ["worker_cls", "worker_extension_cls"])
@pytest.mark.parametrize("name", ["os:getcwd", "os:environ", "absent.module:Worker"])
def test_what_is_no_class_cannot_be_a_worker(folder, option, name):
    with pytest.raises(ConfigError, match=name.partition(":")[0]):
        LLM(folder, **OPTIONS, **{option: name})


def test_a_worker_is_a_subclass_of_worker_and_mixes_with_its_extension(folder):
    with pytest.raises(ConfigError, match="subclass"):
        LLM(folder, **OPTIONS, worker_cls="builtins:int")
    with pytest.raises(ConfigError, match="cannot be mixed"):
        LLM(folder, **OPTIONS, worker_extension_cls="octavo.worker.worker:Worker")
