"""Reported faults about what a request may ask: ids, lengths, parameters, defaults, several answers."""

from __future__ import annotations

import json
import math

import pytest
from transformers import LlamaConfig

from octavo import LLM, SamplingParams
from octavo.errors import InvalidRequestError
from tests.cases.conftest import run, tokens
from tests.tiny_models import llama_config, write_tiny_model

PROMPT = "The capital of France is"

pytestmark = pytest.mark.model


def refused(llm, prompt=PROMPT, **sampling) -> InvalidRequestError:
    """Check that a request is refused, that nothing of it stays behind, and that the engine goes on."""
    with pytest.raises(InvalidRequestError) as caught:
        run(llm, prompt, **sampling)
    assert not llm.llm_engine.has_unfinished_requests()
    assert len(tokens(llm, PROMPT if llm.llm_engine.tokenizer else [5], temperature=0, max_tokens=1)) == 1
    return caught.value


# -- ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[-1], [2**63], [2**31], [], [1.5], ["1"], [None], [True], "vocab_size"], ids=str)
def test_bad_token_ids_are_refused_and_the_next_request_runs(smol, ids):
    """B053: the embedding lookup crashed."""
    prompt = [smol.model_config.vocab_size] if ids == "vocab_size" else ids
    refused(smol, {"prompt_token_ids": prompt})


def test_one_bad_prompt_of_a_list_refuses_the_call_and_names_it(smol):
    """B053: mixed with good ones."""
    with pytest.raises(InvalidRequestError, match="prompt 1 of 3"):
        smol.generate([PROMPT, {"prompt_token_ids": [-1]}, PROMPT], use_tqdm=False)
    assert not smol.llm_engine.has_unfinished_requests()


def test_a_list_of_lists_is_a_batch(smol):
    """B053: [[1], [2]] is two prompts."""
    outputs = smol.generate([[1], [2]], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == [[1], [2]]


@pytest.mark.parametrize(
    "prompt", ["", {"prompt": ""}, [], {}, None, {"prompt_token_ids": 3}, b"bytes", {"prompt": 3}, "\ud800"], ids=repr
)
def test_what_is_no_prompt_is_refused(smol, prompt):
    """Gap: empty prompts crashed a server; never a crash, whatever the type."""
    with pytest.raises(InvalidRequestError):
        smol.generate([prompt], use_tqdm=False)
    assert not smol.llm_engine.has_unfinished_requests()


@pytest.fixture(scope="module")
def wide_tokenizer(tmp_path_factory):
    """A model whose tokenizer knows 8 more tokens than its logits have columns."""
    folder = write_tiny_model(tmp_path_factory.mktemp("wide-tokenizer"), llama_config())
    path = folder / "tokenizer.json"
    settings = json.loads(path.read_text())
    first = max(token["id"] for token in settings["added_tokens"]) + 1
    size = max(settings["model"]["vocab"].values()) + 1
    for index in range(8):
        settings["added_tokens"].append(
            {
                **settings["added_tokens"][-1],
                "id": max(first, size) + index,
                "content": f"<extra-{index}>",
                "special": False,
            }
        )
    path.write_text(json.dumps(settings))
    return LLM(str(folder), max_model_len=128, kv_cache_memory_bytes=2**23)


def test_ids_are_checked_against_the_width_of_the_logits_and_not_the_tokenizer(wide_tokenizer):
    """B039: such ids passed the check and wrote into the neighbours' rows."""
    llm = wide_tokenizer
    outside = llm.get_tokenizer().convert_tokens_to_ids("<extra-3>")
    assert outside >= llm.model_config.vocab_size
    before = tokens(llm, [5, 6, 7], temperature=0, max_tokens=8)
    for sampling in (
        {"allowed_token_ids": [outside]},
        {"stop_token_ids": [outside]},
        {"logit_bias": {outside: 1.0}},
        {"logprob_token_ids": [outside]},
        {"bad_words": ["<extra-3>"]},
    ):
        refused(llm, [5, 6, 7], **sampling)
    refused(llm, "a<extra-3>")
    assert tokens(llm, [5, 6, 7], temperature=0, max_tokens=8) == before


# -- lengths -----------------------------------------------------------------------------------------------------------


def test_the_longest_prompt_gives_one_token_and_one_more_is_refused(tiny):
    """B048: the engine hung, or wanted another engine."""
    llm = tiny(max_model_len=64)
    assert len(tokens(llm, [5] * 63, temperature=0, max_tokens=10, ignore_eos=True)) == 1
    error = refused(llm, [5] * 64, max_tokens=1)
    assert "64" in str(error)
    refused(llm, [5] * 1000, max_tokens=1)


def test_a_refusal_for_length_names_the_limit_and_what_came(tiny):
    """B050: 'maximum context length is 3 tokens'."""
    llm = tiny(max_model_len=64)
    assert all(number in str(refused(llm, [5] * 70, max_tokens=20)) for number in ("64", "70"))
    assert all(number in str(refused(llm, [5] * 8, min_tokens=60, max_tokens=60)) for number in ("64", "8", "60"))


def test_too_many_tokens_are_clamped_and_the_prompt_is_never_shortened(tiny):
    """B051, policy 1: others refused, or cut the prompt silently."""
    llm = tiny(max_model_len=64)
    prompt = list(range(3, 43))
    for max_tokens in (1000, None):
        output = run(llm, prompt, temperature=0, max_tokens=max_tokens, ignore_eos=True)
        assert output.prompt_token_ids == prompt
        assert len(output.outputs[0].token_ids) == 24 and output.outputs[0].finish_reason == "length"


def test_min_tokens_beyond_the_context_is_refused_even_without_max_tokens(tiny):
    """B011: the check was skipped without max_tokens and the engine thread died."""
    llm = tiny(max_model_len=64)
    assert "min_tokens" in str(refused(llm, [5], min_tokens=10**6, max_tokens=None))
    assert "min_tokens" in str(refused(llm, [5], min_tokens=10, max_tokens=9))


@pytest.mark.parametrize("num_blocks", [5, 9])
def test_a_prompt_that_the_whole_cache_cannot_hold_is_refused_at_once(tiny, num_blocks):
    """Admission: it would have waited for ever."""
    llm = tiny(max_model_len=256, num_gpu_blocks_override=num_blocks, block_size=8)
    error = refused(llm, [5] * 200, max_tokens=1)
    assert "200" in str(error)


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bias",
    [{"vocab+5": 5}, {-1: 1}, {"abc": 1}, {5: math.nan}, {5: math.inf}, {49152 + 5: 5}, {1.5: 1}],
    ids=str,
)
def test_bad_logit_biases_are_refused(smol, bias):
    """B038: the engine crashed."""
    refused(smol, logit_bias=bias)


def test_a_huge_logit_bias_is_clamped(smol):
    """B038: 1e9 is as good as 100."""
    assert tokens(smol, PROMPT, temperature=0, max_tokens=2, logit_bias={"5": 1e9}) == [5, 5]


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_p": 0},
        {"top_p": 1.0001},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -2},
        {"repetition_penalty": 0},
        {"presence_penalty": 2.5},
        {"frequency_penalty": -2.5},
        {"max_tokens": 0},
        {"min_tokens": -1},
        {"n": 0},
        {"n": 10**9},
        {"n": 2, "temperature": 0},
        {"logprobs": 10**6},
        {"logprobs": -2},
        {"prompt_logprobs": 21},
        {"stop": [""]},
        {"stop": 5},
        {"seed": "x"},
        {"allowed_token_ids": []},
        {"bad_words": [""]},
        {"stop": "x", "detokenize": False},
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused_by_name(smol, sampling):
    """Gaps and B110: every value out of range, by the name of the first parameter."""
    error = refused(smol, **sampling)
    assert error.parameter == next(iter(sampling))
    assert next(iter(sampling)) in str(error)


@pytest.mark.parametrize(
    "sampling", [{"top_k": 10**9}, {"min_p": 1.0}, {"top_p": 1e-9}, {"temperature": 1e-9}], ids=str
)
def test_extreme_parameters_in_range_work(smol, sampling):
    """Gap: without infinities or NaN; the last three leave one token, which is the greedy one."""
    ids = tokens(smol, PROMPT, max_tokens=4, seed=1, **sampling)
    assert len(ids) == 4
    if "top_k" not in sampling:
        assert ids == tokens(smol, PROMPT, max_tokens=4, temperature=0)


def test_an_unknown_parameter_is_an_error():
    """Misspelt names are never ignored."""
    with pytest.raises(TypeError):
        SamplingParams(temprature=1)
    with pytest.raises(InvalidRequestError, match="temprature"):
        SamplingParams.from_optional(temprature=1)


def test_allowed_ids_and_bad_words_together_never_leave_the_allowed_ids(smol):
    """B037: a token outside the allow-list came out when bad_words banned all of it."""
    tokenizer = smol.get_tokenizer()
    words = ["Paris", "London"]
    ids = [tokenizer.encode(f" {word}")[0] for word in words]
    assert [tokenizer.decode([token_id]) for token_id in ids] == [" Paris", " London"]
    one_banned = run(smol, PROMPT, temperature=1, seed=1, max_tokens=8, allowed_token_ids=ids, bad_words=["Paris"])
    assert set(one_banned.outputs[0].token_ids) == {ids[1]}
    refused(smol, allowed_token_ids=ids, bad_words=words)


def test_bad_words_are_banned_with_and_without_a_leading_space(smol):
    """Gap: the two spellings tokenise differently."""
    free = run(smol, PROMPT, temperature=0, max_tokens=3).outputs[0].text
    assert "Paris" in free
    for spelling in ("Paris", " Paris"):
        assert "Paris" not in run(smol, PROMPT, temperature=0, max_tokens=12, bad_words=[spelling]).outputs[0].text
    assert "Paris" not in run(smol, PROMPT + " ", temperature=0, max_tokens=12, bad_words=["Paris"]).outputs[0].text


# -- defaults ----------------------------------------------------------------------------------------------------------

FILE = {"temperature": 0.1, "top_k": 1, "top_p": 0.001, "repetition_penalty": 1.05}


@pytest.fixture(scope="module")
def with_generation_config(tmp_path_factory):
    """A model whose generation_config.json has opinions."""
    config: LlamaConfig = llama_config()
    folder = write_tiny_model(tmp_path_factory.mktemp("defaults"), config)
    (folder / "generation_config.json").write_text(json.dumps(FILE))
    return folder


def test_defaults_of_the_generation_config_apply_and_lose_against_what_is_given(with_generation_config, caplog):
    """B042: an explicit temperature looked ignored, since top_k=1 of the file remained."""
    options = {"max_model_len": 64, "kv_cache_memory_bytes": 2**23}
    llm = LLM(str(with_generation_config), **options)
    defaults = llm.get_default_sampling_params()
    assert {name: getattr(defaults, name) for name in FILE} == FILE
    # without parameters the file decides: top_k=1 is the greedy path, penalty included
    (implicit,) = llm.generate([[5, 6, 7]], use_tqdm=False)
    assert list(implicit.outputs[0].token_ids) == tokens(llm, [5, 6, 7], temperature=0, repetition_penalty=1.05)
    # parameters that are given stand alone: nothing of the file remains
    first, second = (tokens(llm, [5, 6, 7], temperature=2, seed=seed, max_tokens=16) for seed in (1, 2))
    assert first != second
    ignoring = LLM(str(with_generation_config), generation_config="vllm", **options)
    assert ignoring.get_default_sampling_params() == SamplingParams()
    overriding = LLM(str(with_generation_config), override_generation_config={"top_k": 5}, **options)
    assert overriding.get_default_sampling_params().top_k == 5


# -- several answers and ids -------------------------------------------------------------------------------------------


def test_several_answers_are_complete_distinct_and_repeatable(smol):
    """B030: fewer outputs than n, or one overwrote another."""
    texts = []
    for _ in range(2):
        output = run(smol, "Once upon a time", n=4, temperature=1, seed=1, max_tokens=12, ignore_eos=True)
        assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
        assert all(len(completion.token_ids) == 12 for completion in output.outputs)
        texts.append([completion.text for completion in output.outputs])
    assert texts[0] == texts[1] and len(set(texts[0])) == 4


def test_more_answers_than_requests_run_at_a_time_all_complete(tiny):
    """B110: n above max_num_seqs."""
    llm = tiny(max_num_seqs=8)
    output = run(llm, [5, 6, 7], n=64, temperature=1, seed=1, max_tokens=3, ignore_eos=True)
    assert [completion.index for completion in output.outputs] == list(range(64))
    assert all(len(completion.token_ids) == 3 for completion in output.outputs)


def test_several_answers_under_priority_scheduling(tiny):
    """B031: requests of equal arrival could not be compared."""
    llm = tiny(scheduling_policy="priority")
    params = SamplingParams(n=2, temperature=1, seed=1, max_tokens=4, ignore_eos=True)
    outputs = llm.generate([[5, 6]] * 6, params, use_tqdm=False, priority=[3, 1, 1, 2, 1, 3])
    assert all([completion.index for completion in output.outputs] == [0, 1] for output in outputs)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1


def test_two_live_requests_with_one_id_do_not_mix(smol):
    """B090, policy 7: a hang, a crash, or one got the other's text."""
    engine = smol.llm_engine
    prompts = {"The capital of France is": 6, "1, 2, 3, 4,": 4}
    alone = {prompt: tokens(smol, prompt, temperature=0, max_tokens=size) for prompt, size in prompts.items()}
    for round_ in range(2):  # again right after both have finished
        for prompt, size in prompts.items():
            engine.add_request("same-id", prompt, SamplingParams(temperature=0, max_tokens=size, output_kind=2))
        finished = []
        while engine.has_unfinished_requests():
            finished += [output for output in engine.step() if output.finished]
        assert {output.request_id for output in finished} == {"same-id"}, round_
        assert {output.prompt: list(output.outputs[0].token_ids) for output in finished} == alone


def test_results_come_in_the_order_of_the_prompts_whichever_ends_first(smol):
    """Gap: the second finished first and took the first's place."""
    params = [SamplingParams(temperature=0, max_tokens=size, ignore_eos=True) for size in (12, 2, 7)]
    outputs = smol.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [output.prompt for output in outputs] == ["a", "b", "c"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [12, 2, 7]
