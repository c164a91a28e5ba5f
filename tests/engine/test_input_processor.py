"""Every wrong request is refused with a typed error that names expected and got; right ones become core requests."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import SamplingParams, StructuredOutputsParams
from octavo.engine.input_processor import InputProcessor, derive_seed
from octavo.engine.prompts import as_prompts
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.sampling.custom_processors import AdapterLogitsProcessor
from tests.engine.fakes import EOS, EXTRA_EOS, TURN, VOCAB_SIZE, byte_tokenizer, fake_config


def processor(max_kv_tokens=1000, tokenizer=True, **changes) -> InputProcessor:
    config = fake_config(**changes)
    chosen = byte_tokenizer() if tokenizer is True else tokenizer
    return InputProcessor(config.model, config.scheduler, chosen, max_kv_tokens)


def core_request(prompt: object = "hi", process_options=None, processor_options=None, **params):
    return processor(**(processor_options or {})).process(
        "r", prompt, SamplingParams(**params), **(process_options or {})
    )


# -- prompt forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt, text",
    [
        ("hé", "hé"),
        ([104, 195, 169], None),
        ((104, 195, 169), None),
        (np.array([104, 195, 169]), None),
        ([np.int64(104), 195, 169], None),
        ({"prompt": "hé"}, "hé"),
        ({"prompt_token_ids": [104, 195, 169]}, None),
        ({"prompt_token_ids": np.array([104, 195, 169])}, None),
        ({"prompt_token_ids": [104, 195, 169], "prompt": "hé"}, "hé"),
        ({"prompt": "hé", "multi_modal_data": None}, "hé"),
        ({"prompt": "hé", "multi_modal_data": {}, "mm_processor_kwargs": {}, "multi_modal_uuids": []}, "hé"),
    ],
)
def test_every_prompt_form_gives_the_same_ids(prompt, text):
    if isinstance(prompt, np.ndarray):
        prompt = {"prompt_token_ids": prompt}
    processed = core_request(prompt)
    assert processed.request.prompt_token_ids == [104, 195, 169]
    assert all(type(token_id) is int for token_id in processed.request.prompt_token_ids)
    assert processed.prompt == text


def test_a_list_of_arrays_is_a_list_of_prompts():
    """As a column of a dataset gives them."""
    assert as_prompts([np.array([1, 2]), np.array([3])]) == [[1, 2], [3]]
    assert as_prompts([np.int64(1), np.int64(2)]) == [[1, 2]]
    assert as_prompts(np.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "prompt",
    ["", [], {"prompt": ""}, {"prompt_token_ids": []}, {}, {"prompt": None}],
)
def test_empty_prompts_are_refused(prompt):
    with pytest.raises(InvalidRequestError):
        core_request(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        [np.array([1, 2])],
        {"prompt": "a", "cache_salt": "\ud800"},
        None,
        7,
        b"bytes",
        {"prompt_token_ids": "text"},
        {"prompt": 5},
        {"text": "hi"},
        {"prompt": "hi", "temperature": 1},
        [True, False],
        [1.5],
        [1, "2"],
        [[1], [2]],
        [None],
        {"prompt_token_ids": [1.0]},
        {"prompt_token_ids": 5},
        "lone surrogate \ud800",
    ],
)
def test_prompts_of_a_wrong_type_are_refused(prompt):
    with pytest.raises(InvalidRequestError):
        core_request(prompt)


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2**31, 2**63, -(2**63), 10**30])
def test_ids_outside_the_logits_width_are_refused_by_name(token_id):
    with pytest.raises(InvalidRequestError, match=rf"from 0 to {VOCAB_SIZE - 1}.*got {token_id}$") as error:
        core_request([1, token_id, 2])
    assert error.value.parameter == "prompt_token_ids"


def test_ids_of_the_logits_that_the_tokenizer_lacks_are_taken():
    assert core_request([VOCAB_SIZE - 1]).request.prompt_token_ids == [VOCAB_SIZE - 1]


@pytest.mark.parametrize("key", ["multi_modal_data", "prompt_embeds", "encoder_prompt"])
def test_prompt_kinds_that_are_not_built_are_refused_as_such(key):
    with pytest.raises(UnsupportedError, match=key):
        core_request({"prompt": "hi", key: object()})


def test_text_needs_a_tokenizer():
    with pytest.raises(InvalidRequestError, match="skip_tokenizer_init"):
        core_request("hi", processor_options={"tokenizer": None})
    assert core_request([1], processor_options={"tokenizer": None}).request.prompt_token_ids == [1]


@pytest.mark.parametrize("text, num_marks", [("hi", 1), ("<turn>hi", 2)])
def test_special_tokens_are_added_as_the_tokenizer_says_unless_told_otherwise(text, num_marks):
    """The policy: what is written is what is encoded, a mark in the text included; `chat` adds none (see docs)."""
    tokenizer = byte_tokenizer(beginning=TURN)
    inputs = processor(tokenizer=tokenizer)
    assert inputs.process("r", text, SamplingParams()).request.prompt_token_ids.count(TURN) == num_marks
    bare = inputs.process("r", text, SamplingParams(), tokenization_kwargs={"add_special_tokens": False})
    assert bare.request.prompt_token_ids.count(TURN) == num_marks - 1


def test_a_text_that_can_never_fit_is_refused_without_tokenising_it(monkeypatch):
    """A body of many megabytes must not hold up the engine."""
    tokenizer = byte_tokenizer()
    inputs = processor(tokenizer=tokenizer)
    monkeypatch.setattr(tokenizer, "encode", lambda *args, **options: pytest.fail("tokenised"))
    with pytest.raises(InvalidRequestError, match=r"200001 characters .*max_model_len=64"):
        inputs.process("r", "x" * 200_001, SamplingParams())


def test_a_long_text_that_may_fit_is_tokenised():
    processed = core_request("x" * 100_001, processor_options={"max_model_len": 200_000, "max_kv_tokens": 200_000})
    assert len(processed.request.prompt_token_ids) == 100_001
    cut = core_request("x" * 100_001, {"tokenization_kwargs": {"truncate_prompt_tokens": 3}})
    assert len(cut.request.prompt_token_ids) == 3


@pytest.mark.parametrize("salt", ["", 5, "x" * 1025])
def test_a_wrong_cache_salt_is_refused(salt):
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        core_request({"prompt": "hi", "cache_salt": salt})


def test_the_cache_salt_reaches_the_core():
    assert core_request({"prompt": "hi", "cache_salt": "s"}).request.cache_salt == "s"


# -- length ------------------------------------------------------------------------------------------------------------


def test_a_prompt_one_short_of_the_limit_leaves_one_token():
    processed = core_request([1] * 63, max_tokens=None)
    assert processed.request.sampling_params.max_tokens == 1


def test_a_prompt_at_the_limit_is_refused_with_both_numbers():
    with pytest.raises(
        InvalidRequestError, match=r"maximum context length is 64 tokens \(max_model_len\).*has 64 tokens"
    ):
        core_request([1] * 64)


def test_without_max_tokens_the_rest_of_the_context_is_used():
    assert core_request([1] * 10, max_tokens=None).request.sampling_params.max_tokens == 54


def test_max_tokens_past_the_context_is_cut_and_the_prompt_is_whole():
    """The policy: clamp the output, never shorten the prompt silently (vllm#42474)."""
    request = core_request([1] * 60, max_tokens=2045).request
    assert request.sampling_params.max_tokens == 4
    assert len(request.prompt_token_ids) == 60


def test_min_tokens_past_the_context_is_refused_with_all_numbers():
    with pytest.raises(InvalidRequestError, match=r"min_tokens=60 .*8 tokens.*max_model_len=64"):
        core_request([1] * 8, min_tokens=60, max_tokens=None)
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        core_request([1] * 8, min_tokens=10**6, max_tokens=None)


def test_a_prompt_that_can_never_fit_the_cache_is_refused():
    with pytest.raises(InvalidRequestError, match=r"20 tokens.*never fit.*holds 20"):
        core_request([1] * 20, processor_options={"max_kv_tokens": 20})
    assert core_request([1] * 19, processor_options={"max_kv_tokens": 20}).request.sampling_params.max_tokens == 1


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"truncate_prompt_tokens": 2}, [3, 4]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [1, 2]),
        ({"truncate_prompt_tokens": 9}, [1, 2, 3, 4]),
        ({"truncate_prompt_tokens": None}, [1, 2, 3, 4]),
    ],
)
def test_a_prompt_is_shortened_only_on_demand(options, expected):
    processed = core_request([1, 2, 3, 4], {"tokenization_kwargs": options})
    assert processed.request.prompt_token_ids == expected


def test_truncation_to_the_models_limit_leaves_one_new_token():
    processed = core_request([1] * 200, {"tokenization_kwargs": {"truncate_prompt_tokens": -1}})
    assert len(processed.request.prompt_token_ids) == 63
    processed = core_request(
        [1] * 200, {"tokenization_kwargs": {"truncate_prompt_tokens": -1}}, processor_options={"max_kv_tokens": 20}
    )
    assert len(processed.request.prompt_token_ids) == 19, "the KV cache is the limit here"


@pytest.mark.parametrize(
    "options",
    [
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
        {"truncate_prompt_tokens": True},
        {"truncation_side": "middle"},
        {"add_special_tokens": 1},
        {"max_length": 5},
        {1: 2},
        [("truncate_prompt_tokens", 2)],
        5,
    ],
)
def test_wrong_tokenization_options_are_refused(options):
    with pytest.raises(InvalidRequestError):
        core_request([1, 2, 3], {"tokenization_kwargs": options})


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {"stop_token_ids": [VOCAB_SIZE]},
        {"allowed_token_ids": [1, VOCAB_SIZE]},
        {"logit_bias": {VOCAB_SIZE + 5: 1.0}},
        {"logprob_token_ids": [VOCAB_SIZE]},
        {"logprobs": 21},
        {"prompt_logprobs": 21},
        {"logprobs": -1},
    ],
)
def test_parameters_outside_the_model_are_refused(params):
    with pytest.raises(InvalidRequestError) as error:
        core_request(**params)
    assert error.value.parameter == next(iter(params))


def test_all_logprobs_need_the_engines_leave():
    assert core_request(logprobs=-1, processor_options={"max_logprobs": VOCAB_SIZE})


def test_a_field_assigned_after_construction_is_checked_too():
    params = SamplingParams()
    params.temperature = -1.0
    with pytest.raises(InvalidRequestError, match="temperature"):
        processor().process("r", "hi", params)


def test_the_users_params_are_left_alone():
    params = SamplingParams(max_tokens=10**6, bad_words=["x"], n=2)
    before = params.clone()
    processor().process("r", "hi", params)
    assert params == before


def test_params_of_another_type_are_refused():
    with pytest.raises(InvalidRequestError, match="sampling_params must be a SamplingParams"):
        processor().process("r", "hi", {"temperature": 1})


@pytest.mark.parametrize("request_id", ["", None, 5])
def test_a_request_id_is_text(request_id):
    with pytest.raises(InvalidRequestError, match="request_id"):
        processor().process(request_id, "hi", SamplingParams())


def test_bad_words_are_banned_at_a_start_and_after_a_space():
    sequences = core_request(bad_words=["no", " way"]).request.sampling_params.bad_words_token_ids
    assert sequences == [list(b"no"), list(b" no"), list(b"way"), list(b" way")]


def test_structured_outputs_are_refused_without_a_tokenizer():
    with pytest.raises(InvalidRequestError, match="structured_outputs need a tokenizer"):
        core_request(structured_outputs=StructuredOutputsParams(regex="a+"))


def test_text_parameters_need_a_tokenizer():
    for params in ({"stop": ["x"]}, {"bad_words": ["x"]}):
        with pytest.raises(InvalidRequestError, match="skip_tokenizer_init"):
            core_request([1], processor_options={"tokenizer": None}, **params)


def test_end_of_sequence_ids_stop_unless_ignored():
    request = core_request(stop_token_ids=[5]).request
    assert (request.eos_token_id, request.stop_token_ids) == (EOS, [5, EXTRA_EOS])


def test_ignore_eos_drops_the_models_ids_and_keeps_the_users():
    """vllm#4589: further ids of the generation config are ignored as well; what the user asked for still stops."""
    request = core_request(stop_token_ids=[5, EXTRA_EOS], ignore_eos=True).request
    assert (request.eos_token_id, request.stop_token_ids) == (None, [5, EXTRA_EOS])


def test_priority_needs_the_priority_policy():
    with pytest.raises(InvalidRequestError, match="scheduling_policy='priority'"):
        core_request("hi", {"priority": 1})
    assert core_request("hi", {"priority": -3}, {"policy": "priority"}).request.priority == -3
    for wrong in (1.5, "1", True, 2**63):
        with pytest.raises(InvalidRequestError, match="priority"):
            core_request("hi", {"priority": wrong}, {"policy": "priority"})


@pytest.mark.parametrize("time_s", ["now", float("nan"), 10**400, True, -1])
def test_arrival_times_are_numbers(time_s):
    with pytest.raises(InvalidRequestError, match="arrival_time must be a finite number"):
        core_request("hi", {"arrival_time": time_s})


@pytest.mark.parametrize("token_ids", [5, "ab", ["a"], [1.5], [-1], [VOCAB_SIZE]])
def test_the_end_of_reasoning_is_made_of_token_ids(token_ids):
    wish = StructuredOutputsParams(choice=["a"])
    with pytest.raises(InvalidRequestError, match="reasoning_end_token_ids must be"):
        core_request("hi", {"reasoning_end_token_ids": token_ids}, structured_outputs=wish)


# -- ids and seeds -----------------------------------------------------------------------------------------------------


def test_one_external_id_twice_gives_two_internal_ids():
    inputs = processor()
    first, second = (inputs.process("same", "hi", SamplingParams()) for _ in range(2))
    assert first.external_id == second.external_id == "same"
    assert first.request.request_id != second.request.request_id


def test_seeds_of_requests_without_one_follow_from_the_engines_seed():
    def seeds(engine_seed):
        inputs = processor(seed=engine_seed)
        return [inputs.process("r", "hi", SamplingParams()).request.seed for _ in range(50)]

    assert seeds(0) == seeds(0)
    assert len(set(seeds(0)) | set(seeds(1))) == 100
    assert derive_seed(0, 0) == seeds(0)[0]


def test_a_refused_request_does_not_shift_the_seeds_of_others():
    inputs = processor()
    with pytest.raises(InvalidRequestError):
        inputs.process("r", "", SamplingParams())
    assert inputs.process("r", "hi", SamplingParams()).request.seed == derive_seed(0, 0)


@pytest.mark.parametrize("seed, expected", [(0, 0), (7, 7), (-2, 2**64 - 2), (2**64 - 1, 2**64 - 1)])
def test_the_users_seed_is_kept(seed, expected):
    assert core_request(seed=seed).request.seed == expected


class _OnlyShort(AdapterLogitsProcessor):
    """Refuses requests that ask for more than 5 tokens."""

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        if (params.max_tokens or 0) > 5:
            raise ValueError("at most 5 tokens")

    def new_req_logits_processor(self, params):
        return None


def test_custom_logits_processors_check_the_parameters_before_anything_runs():
    options = {"logits_processors": (_OnlyShort,)}
    core_request(max_tokens=5, processor_options=options)
    with pytest.raises(InvalidRequestError, match="_OnlyShort: at most 5 tokens"):
        core_request(max_tokens=6, processor_options=options)
