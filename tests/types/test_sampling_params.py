"""SamplingParams: ranges, types, normalisation, the two stages of checks, and the way across a process border."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.types.pooling import PoolingParams
from octavo.types.sampling_params import (
    UNSUPPORTED_FIELDS,
    BeamSearchParams,
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
)
from octavo.types.structured_params import StructuredOutputsParams

OUT_OF_RANGE = [
    ("n", 0),
    ("n", 16385),
    ("n", 10**9),
    ("n", True),
    ("n", 1.0),
    ("presence_penalty", 2.01),
    ("presence_penalty", -2.01),
    ("frequency_penalty", 2.01),
    ("frequency_penalty", math.nan),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", math.inf),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "1"),
    ("temperature", True),
    ("temperature", None),
    ("temperature", 10**400),
    ("top_p", 0.0),
    ("top_p", 1.0001),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", True),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("seed", 2**64),
    ("seed", -(2**63) - 1),
    ("seed", 1.0),
    ("seed", "7"),
    ("stop", [""]),
    ("stop", ""),
    ("stop", [1]),
    ("stop", 3),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", [True]),
    ("stop_token_ids", "12"),
    ("bad_words", [""]),
    ("bad_words", ["\ud800"]),
    ("stop", ["a\ud800"]),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("min_tokens", -1),
    ("min_tokens", 17),  # above max_tokens
    ("logprobs", -2),
    ("logprobs", 1.5),
    ("prompt_logprobs", -2),
    ("logprob_token_ids", list(range(129))),
    ("logprob_token_ids", [-1]),
    ("logit_bias", {"abc": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {1: math.inf}),
    ("logit_bias", {1: "x"}),
    ("logit_bias", {1.5: 1}),
    ("logit_bias", [1, 2]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [-3]),
    ("extra_args", {"key": 2**64}),
    ("extra_args", {"key": [{"deep": -(2**63) - 1}]}),
    ("extra_args", {1: 2}),
    ("ignore_eos", 1),
    ("detokenize", "yes"),
    ("skip_reading_prefix_cache", 0),
    ("output_kind", 3),
    ("stream_interval", 0),
    ("repetition_detection", 5),
    # beyond float32 or 64 bits: an overflow or an infinity in the middle of a step
    ("repetition_penalty", 1e-320),
    ("repetition_penalty", 1e308),
    ("top_k", 2**63),
    ("max_tokens", 2**63),
    ("logprobs", 10**30),
    # what looks like a number or a list and is none
    ("n", np.array([1, 2])),
    ("seed", np.array([1, 2])),
    ("stop_token_ids", np.array(3)),
    ("allowed_token_ids", np.array(3)),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter == name
    assert name in str(caught.value) and "must be" in str(caught.value) and "got" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 16384),
        ("presence_penalty", -2),
        ("frequency_penalty", 2),
        ("temperature", 2),
        ("top_p", 1e-6),
        ("top_k", 10**9),
        ("min_p", 1),
        ("seed", 2**64 - 1),
        ("seed", -(2**63)),
        ("max_tokens", None),
        ("min_tokens", 16),
        ("logprobs", 0),
        ("logprobs", -1),
    ],
)
def test_the_ends_of_each_range_are_accepted(name: str, value: object) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_extra_arguments_that_hold_themselves_are_checked_once() -> None:
    endless: list[object] = [1]
    endless.append(endless)
    SamplingParams(extra_args={"key": endless})
    endless.append(2**64)
    with pytest.raises(InvalidRequestError, match="64 bits"):
        SamplingParams(extra_args={"key": endless})


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.seed, params.logprobs) == (16, 0, None, None)
    assert params.output_kind is RequestOutputKind.CUMULATIVE
    assert params.detokenize and params.skip_special_tokens and params.spaces_between_special_tokens
    assert not params.include_stop_str_in_output and not params.ignore_eos


def test_unknown_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)
    with pytest.raises(InvalidRequestError, match="temprature"):
        SamplingParams.from_optional(temprature=1.0)
    with pytest.raises(InvalidRequestError, match="temprature"):
        SamplingParams.from_defaults({}, {"temprature": 1.0})


@pytest.mark.parametrize(
    ("kind", "name", "way_out"),
    [
        (SamplingParams, "guided_decoding", "use structured_outputs=StructuredOutputsParams"),
        (SamplingParams, "best_of", "use n$"),
        (SamplingParams, "use_beam_search", "LLM.beam_search"),
        (SamplingParams, "logits_processors", "LLM\\(…, logits_processors"),
        (SamplingParams, "truncate_prompt_tokens", "tokenization_kwargs"),
        (SamplingParams, "max_new_tokens", "use max_tokens"),
        (SamplingParams, "presence_penality", "did you mean presence_penalty"),
        (BeamSearchParams, "width", "did you mean beam_width"),
        (PoolingParams, "normalize", "use use_activation"),
        (StructuredOutputsParams, "backend", "structured_outputs_config"),
    ],
)
def test_a_parameter_that_is_not_there_is_refused_with_what_stands_in_its_place(kind, name, way_out) -> None:
    with pytest.raises(InvalidRequestError, match=f"{kind.__name__} has no parameter '{name}'; .*{way_out}") as caught:
        kind(**{name: 1})
    assert caught.value.parameter == name and isinstance(caught.value, TypeError)


def test_parameters_without_names_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"by name, such as n=…, got \(0.8,\)"):
        SamplingParams(0.8)


def test_numpy_numbers_are_accepted_and_become_python_ones() -> None:
    params = SamplingParams(top_k=np.int64(5), temperature=np.float32(0.5), stop_token_ids=np.array([1, 2]))
    assert type(params.top_k) is int and type(params.temperature) is float
    assert params.stop_token_ids == [1, 2] and type(params.stop_token_ids[0]) is int


def test_shorthands_are_normalised() -> None:
    params = SamplingParams(
        stop="end", top_k=-1, seed=-1, logprobs=True, stop_token_ids=[3, 1, 3], logit_bias={"4": 500}
    )
    assert params.stop == ["end"] and params.top_k == 0 and params.seed is None and params.logprobs == 1
    assert params.stop_token_ids == [3, 1] and params.logit_bias == {4: 100.0}
    assert SamplingParams(logprobs=False).logprobs is None


def test_greedy_resets_what_has_no_meaning() -> None:
    for temperature in (0, 1e-9, 9e-6):
        params = SamplingParams(temperature=temperature, top_p=0.5, top_k=4, min_p=0.1)
        assert params.is_greedy
        assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 1.0, 0, 0.0)
    with pytest.raises(InvalidRequestError, match="greedy") as caught:
        SamplingParams(n=2, temperature=0)
    assert caught.value.parameter == "n"


def test_a_tiny_temperature_is_raised_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    logging.getLogger("octavo").addHandler(caplog.handler)
    try:
        params = SamplingParams(temperature=0.001, top_k=7)
    finally:
        logging.getLogger("octavo").removeHandler(caplog.handler)
    assert params.temperature == 0.01 and params.top_k == 7 and not params.is_greedy
    assert "0.001" in caplog.text and "0.01" in caplog.text


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidRequestError, match="detokenize"):
        SamplingParams(stop=["a"], detokenize=False)


def test_logprob_token_ids_and_logprobs_must_agree() -> None:
    assert SamplingParams(logprob_token_ids=[4, 5], logprobs=2).num_logprobs == 2
    assert SamplingParams(logprob_token_ids=[4, 5]).num_logprobs == 2
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(logprob_token_ids=[4, 5], logprobs=3)
    assert caught.value.parameter == "logprobs"


def test_prompt_logprobs_bypass_the_prefix_cache() -> None:
    assert SamplingParams(prompt_logprobs=0).skip_reading_prefix_cache is True
    assert SamplingParams(prompt_logprobs=0, skip_reading_prefix_cache=False).skip_reading_prefix_cache is False
    assert SamplingParams().skip_reading_prefix_cache is None


@pytest.mark.parametrize("name", UNSUPPORTED_FIELDS)
def test_fields_not_built_are_refused_and_not_ignored(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        SamplingParams(**{name: 7})


def test_an_array_for_a_field_not_built_is_refused_like_anything_else() -> None:
    with pytest.raises(UnsupportedError, match="watermarking"):
        SamplingParams(watermarking=np.array([1, 2]))  # type: ignore[arg-type]


def test_a_changed_field_is_caught_by_verify() -> None:
    params = SamplingParams()
    params.top_p = 3.0
    with pytest.raises(InvalidRequestError, match="top_p"):
        params.verify()


# -- against a model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logprob_token_ids"])
def test_ids_must_lie_in_the_logits_width(name: str) -> None:
    """B038, B039: a tokenizer may know ids that the model's head does not have."""
    SamplingParams(**{name: [0, 99]}).verify_for_model(vocab_size=100)
    with pytest.raises(InvalidRequestError, match="99") as caught:
        SamplingParams(**{name: [0, 100]}).verify_for_model(vocab_size=100)
    assert caught.value.parameter == name


def test_bias_and_bad_word_ids_must_lie_in_the_logits_width() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(logit_bias={"105": 5}).verify_for_model(vocab_size=100)
    assert caught.value.parameter == "logit_bias"
    params = SamplingParams(bad_words=["x"])
    params.set_bad_words_token_ids([[1, 105]])
    with pytest.raises(InvalidRequestError) as caught:
        params.verify_for_model(vocab_size=100)
    assert caught.value.parameter == "bad_words"


def test_masks_that_leave_nothing_are_refused() -> None:
    """B037."""
    params = SamplingParams(allowed_token_ids=[3, 4], bad_words=["a", "b"])
    params.set_bad_words_token_ids([[3], [4], [7, 8]])
    with pytest.raises(InvalidRequestError, match="nothing is left"):
        params.verify_for_model(vocab_size=100)
    params.set_bad_words_token_ids([[3], [4, 4]])
    params.verify_for_model(vocab_size=100)


def test_bad_words_are_bounded_and_not_empty() -> None:
    params = SamplingParams(bad_words=["a"])
    with pytest.raises(InvalidRequestError, match="128"):
        params.set_bad_words_token_ids([[1]] * 129)
    with pytest.raises(InvalidRequestError, match="at least one token"):
        params.set_bad_words_token_ids([[1], []])


def test_logprobs_are_bounded_by_the_engine_and_the_vocabulary() -> None:
    SamplingParams(logprobs=20, prompt_logprobs=20).verify_for_model(vocab_size=100)
    for name in ("logprobs", "prompt_logprobs"):
        for value, limit, vocab_size in ((21, 20, 100), (-1, 20, 100), (11, 20, 10), (10**6, 100, 100)):
            with pytest.raises(InvalidRequestError) as caught:
                SamplingParams(**{name: value}).verify_for_model(vocab_size, limit)
            assert caught.value.parameter == name
        SamplingParams(**{name: -1}).verify_for_model(vocab_size=100, max_logprobs=100)
        SamplingParams(**{name: -1}).verify_for_model(vocab_size=10, max_logprobs=20)


# -- construction from defaults ----------------------------------------------------------------------------------------


def test_model_defaults_apply_and_explicit_values_win() -> None:
    """B042."""
    defaults = {"temperature": 0.1, "top_k": 1, "top_p": 0.001, "repetition_penalty": 1.05, "max_new_tokens": 99}
    plain = SamplingParams.from_defaults(defaults, {})
    assert (plain.temperature, plain.top_k, plain.top_p, plain.repetition_penalty) == (0.1, 1, 0.001, 1.05)
    assert plain.max_tokens == 99
    some = SamplingParams.from_defaults(defaults, {"temperature": 1.0, "top_k": None})
    assert (some.temperature, some.top_k) == (1.0, 1)
    explicit = SamplingParams.from_defaults(
        defaults, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0, "max_tokens": 5}
    )
    assert (explicit.temperature, explicit.top_k, explicit.top_p, explicit.repetition_penalty) == (1.0, 0, 1.0, 1.0)
    assert explicit.max_tokens == 5


def test_from_optional_takes_none_as_not_given() -> None:
    params = SamplingParams.from_optional(temperature=None, top_p=None, stop=None, max_tokens=None)
    assert params.temperature == 1.0 and params.top_p == 1.0 and params.max_tokens is None


def test_a_clone_shares_nothing() -> None:
    params = SamplingParams(stop=["a"], extra_args={"x": [1]}, bad_words=["w"])
    params.set_bad_words_token_ids([[1, 2]])
    clone = params.clone()
    assert clone == params and clone.bad_words_token_ids == [[1, 2]]
    clone.stop_strings.append("b")
    assert clone.extra_args is not None and params.extra_args is not None
    clone.extra_args["x"].append(2)
    assert params.stop == ["a"] and params.extra_args == {"x": [1]}


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0.01, 2),
            "top_k": st.integers(-1, 2**40),
            "seed": st.integers(-(2**63), 2**64 - 1),
            "stop": st.lists(st.text(min_size=1), max_size=3),
            "logit_bias": st.dictionaries(st.integers(0, 10**6), st.floats(-200, 200), max_size=4),
            "max_tokens": st.none() | st.integers(1, 10**6),
            "output_kind": st.sampled_from(RequestOutputKind),
            "extra_args": st.dictionaries(st.text(), st.integers(-(2**63), 2**64 - 1)),
            "repetition_detection": st.just(RepetitionDetectionParams(max_pattern_size=4, min_count=3)),
        },
    )
)
def test_params_cross_a_process_border_unchanged(fields: dict[str, object]) -> None:
    params = SamplingParams(**fields)
    params.set_bad_words_token_ids([[1, 2], [3]])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


# -- the other structs -------------------------------------------------------------------------------------------------


def test_repetition_detection_ranges() -> None:
    assert RepetitionDetectionParams() == RepetitionDetectionParams(max_pattern_size=0)
    assert RepetitionDetectionParams(max_pattern_size=3, min_count=2).min_pattern_size == 1
    as_json = SamplingParams(repetition_detection={"max_pattern_size": 3, "min_count": 2})
    assert as_json.repetition_detection == RepetitionDetectionParams(max_pattern_size=3, min_count=2)
    for fields in ({"min_count": 1}, {"min_count": 2, "min_pattern_size": 4}, {"min_count": -1}):
        with pytest.raises(InvalidRequestError):
            RepetitionDetectionParams(max_pattern_size=3, **fields)
    with pytest.raises(InvalidRequestError, match="repetition_detection"):
        SamplingParams(repetition_detection={"max_pattern_sise": 3})


def test_structured_outputs_need_exactly_one_constraint() -> None:
    assert StructuredOutputsParams(json={"type": "object"}).json == {"type": "object"}
    for fields in (
        {},
        {"regex": "a", "choice": ["b"]},
        {"choice": []},
        {"choice": "yes"},
        {"choice": [""]},
        {"json_object": False},
        {"regex": "a\0"},
        {"json": "{"},
        {"json": 5},
        {"grammar": 5},
        {"structural_tag": "{"},
        {"regex": "a" * 2**17},
        {"regex": "\ud800"},
        {"choice": ["a", "\ud800"]},
        {"json": {"const": "\ud800"}},
        {"json": {"const": {1, 2}}},
        {"json": {"maximum": math.nan}},
        {"json": '{"maximum": ' + "9" * 5000 + "}"},
        {"json": '{"type": "object", "properties": {"a": {"type": "null", "type": "string"}}}'},
        {"structural_tag": '{"format": {}, "format": {}}'},
        {"regex": "a", "disable_any_whitespace": 1},
        {"regex": "a", "whitespace_pattern": 5},
    ):
        with pytest.raises(InvalidRequestError, match="structured_outputs"):
            StructuredOutputsParams(**fields)


def test_errors_of_structured_outputs_name_what_was_given_and_the_way_out() -> None:
    class Model:
        @staticmethod
        def model_json_schema() -> dict[str, object]:
            return {}

    with pytest.raises(InvalidRequestError, match=r"exactly one of json, .* got regex and choice$"):
        StructuredOutputsParams(regex="a", choice=["b"])
    with pytest.raises(InvalidRequestError, match=r"got none of them$"):
        StructuredOutputsParams()
    with pytest.raises(InvalidRequestError, match=r"JSON as text or dict \(.*model_json_schema\(\)\)"):
        StructuredOutputsParams(json=Model)  # type: ignore[arg-type]


def test_structured_outputs_bound_the_nesting() -> None:
    def nested(depth: int) -> dict[str, object]:
        return {} if depth == 0 else {"items": nested(depth - 1)}

    StructuredOutputsParams(json=nested(64))
    for schema in (nested(65), "[" * 100000 + "]" * 100000):
        with pytest.raises(InvalidRequestError):
            StructuredOutputsParams(json=schema)


def test_beam_search_ranges() -> None:
    assert BeamSearchParams(beam_width=2, max_tokens=5).length_penalty == 1.0
    penalties = ({"length_penalty": math.nan}, {"length_penalty": 1e3})  # length ** 1e3 overflows
    for fields in ({"beam_width": 0}, {"max_tokens": 0}, {"temperature": 3}, *penalties):
        with pytest.raises(InvalidRequestError):
            BeamSearchParams(**{"beam_width": 2, "max_tokens": 5, **fields})


def test_what_is_said_of_parameters_is_what_was_chosen():
    text = repr(SamplingParams(temperature=0.5, n=1, stop="x"))
    assert "temperature=0.5, stop=['x']" in text
    assert "n=1" not in text and "logprobs" not in text
