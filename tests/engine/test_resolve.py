"""Defaults are decided in one place: explicit wishes are enforced or refused, open ones follow the checkpoint."""

from __future__ import annotations

import json
import logging

import pytest

from octavo.config import EngineArgs
from octavo.engine.resolve import parse_length, resolve
from octavo.errors import ConfigError, UnsupportedError
from tests.tiny_models import llama_config, write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = write_tiny_model(tmp_path_factory.mktemp("tiny"), llama_config())
    generation = {"temperature": 0.1, "top_k": 1, "max_new_tokens": 7, "do_sample": True, "eos_token_id": [0, 2]}
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def resolved(folder, **options):
    return resolve(EngineArgs(model=str(folder), **options))


@pytest.mark.parametrize(
    ("wish", "length"),
    [(4096, 4096), ("4096", 4096), ("4k", 4000), ("4K", 4096), ("0.5K", 512), (-1, None), ("auto", None), ("-1", None)],
)
def test_lengths_are_read_as_vllm_reads_them(wish, length):
    assert parse_length(wish) == length


@pytest.mark.parametrize("wish", [0, 1, -2, "", "k", "many", "4kk", True, "1e3", "nan", "infK", "3.5"])
def test_other_lengths_are_refused(wish):
    with pytest.raises(ConfigError, match="max_model_len"):
        parse_length(wish)


def test_an_open_length_is_the_models_and_may_shrink(folder):
    model = resolved(folder).config.model
    assert (model.max_model_len, model.fit_max_model_len) == (512, True)


def test_an_explicit_length_is_kept_and_may_not_shrink(folder):
    model = resolved(folder, max_model_len=100).config.model
    assert (model.max_model_len, model.fit_max_model_len) == (100, False)


def test_a_length_beyond_the_models_positions_is_refused_with_both_numbers(folder):
    with pytest.raises(ConfigError, match=r"513.*512"):
        resolved(folder, max_model_len=513)


def test_generation_config_gives_defaults_and_end_of_sequence_ids(folder):
    model = resolved(folder).config.model
    assert model.default_sampling_params == {"temperature": 0.1, "top_k": 1, "max_tokens": 7}
    assert model.eos_token_ids[0] == 0 and 2 in model.eos_token_ids


def test_end_ids_that_the_model_cannot_sample_are_left_out(folder):
    """min_tokens would mask a logit that is not there, and the request would fail."""
    vocab_size = resolved(folder).config.model.vocab_size
    overridden = resolved(folder, hf_overrides={"eos_token_id": [vocab_size - 1, vocab_size, -1]}).config.model
    assert overridden.eos_token_ids == (0, 2, vocab_size - 1)


def test_generation_config_can_be_ignored_and_overridden(folder):
    assert resolved(folder, generation_config="vllm").config.model.default_sampling_params == {}
    overridden = resolved(folder, override_generation_config={"temperature": 0.9}).config.model
    assert overridden.default_sampling_params == {"temperature": 0.9, "top_k": 1, "max_tokens": 7}


def test_an_override_without_effect_is_refused(folder):
    """A misspelt name was ignored without a word."""
    with pytest.raises(ConfigError, match=r"max_new_tokens.*'temprature'"):
        resolved(folder, override_generation_config={"temprature": 0.9})


def test_generation_config_from_another_folder(folder, tmp_path):
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.5}')
    assert resolved(folder, generation_config=str(tmp_path)).config.model.default_sampling_params == {"top_p": 0.5}
    with pytest.raises(ConfigError, match="generation_config"):
        resolved(folder, generation_config=str(tmp_path / "absent"))


def test_overrides_of_the_model_config_take_effect(folder):
    assert resolved(folder, hf_overrides={"max_position_embeddings": 64}).config.model.max_model_len == 64


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, "float32"),
        ({"hf_overrides": {"dtype": "bfloat16"}}, "float16"),
        ({"quantization": "int8"}, "float16"),
        ({"quantization": "int8", "compute": "exact"}, "float32"),
        ({"kv_cache_dtype": "int8"}, "int8"),
    ],
)
def test_keys_and_values_are_kept_as_precisely_as_the_weights(folder, options, dtype):
    assert resolved(folder, **options).config.cache.dtype == dtype


def test_without_chunked_prefill_a_step_holds_a_whole_prompt(folder):
    scheduler = resolved(folder, enable_chunked_prefill=False, max_model_len=512).config.scheduler
    assert scheduler.max_num_batched_tokens >= 512
    with pytest.raises(ConfigError, match="chunked prefill is off"):
        resolved(folder, enable_chunked_prefill=False, max_num_batched_tokens=511, max_num_seqs=4)


def test_the_token_budget_must_hold_one_token_of_every_request(folder):
    assert resolved(folder, max_num_batched_tokens=8).config.scheduler.max_num_seqs == 8
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens=8.*max_num_seqs=9"):
        resolved(folder, max_num_batched_tokens=8, max_num_seqs=9)


def test_16_bit_types_of_vllm_scripts_are_taken_with_a_notice(folder, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("octavo"), "propagate", True)
    assert resolved(folder, dtype="bfloat16").config.model.max_model_len == 512
    assert "dtype=bfloat16: activations are float32" in caplog.text


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dtype": "int3"}, ConfigError),
        ({"load_format": "pt"}, ConfigError),
        ({"scheduling_policy": "lifo"}, ConfigError),
        ({"tensor_parallel_size": 0}, ConfigError),
        ({"prefill_context_parallel_size": 2}, UnsupportedError),
        ({"block_size": 0}, ConfigError),
        ({"max_num_seqs": 1.5}, ConfigError),
        ({"kv_cache_memory_bytes": -1}, ConfigError),
        ({"gpu_memory_utilization": 1.5}, ConfigError),
        ({"watermark": 1.0}, ConfigError),
        ({"long_prefill_token_threshold": -1}, ConfigError),
        ({"max_logprobs": -2}, ConfigError),
        ({"logits_processors": ["no.such:Thing"]}, ConfigError),
        ({"hf_overrides": lambda config: config}, UnsupportedError),
    ],
)
def test_wrong_options_are_refused_by_name(folder, options, error):
    with pytest.raises(error) as caught:
        resolved(folder, **options)
    name = next(iter(options))
    assert name in str(caught.value) or name == "logits_processors"


@pytest.mark.parametrize("options", [{"block_size": 2**17}, {"max_num_seqs": 2**17}, {"max_num_batched_tokens": 2**31}])
def test_sizes_beyond_reason_are_refused_by_name(folder, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        resolved(folder, **options)


@pytest.mark.parametrize(
    "events", [{"enable_kv_cache_events": "no"}, {"enable_kv_cache_events": True, "publisher": "zmq"}]
)
def test_kv_events_are_switched_by_a_bool_and_nothing_else(folder, events):
    with pytest.raises((ConfigError, UnsupportedError), match="kv_events_config"):
        resolved(folder, kv_events_config=events)


@pytest.mark.parametrize("wrong", [{"temperature": "hot"}, {"top_k": 1.5}, {"max_new_tokens": 0}, {"top_p": [0.9]}])
def test_an_unusable_generation_config_is_refused_at_the_start_and_can_be_ignored(folder, tmp_path, wrong):
    (tmp_path / "generation_config.json").write_text(json.dumps(wrong))
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"generation config is unusable: {name.replace('new_', '')}.*'vllm'"):
        resolved(folder, generation_config=str(tmp_path))
    with pytest.raises(ConfigError, match="generation config is unusable"):
        resolved(folder, override_generation_config=wrong)
    assert resolved(folder, generation_config="vllm").config.model.default_sampling_params == {}


def test_steps_are_scheduled_ahead_where_workers_are_processes_of_their_own(tiny_llama, caplog):
    def is_ahead(**options):
        return resolve(EngineArgs(str(tiny_llama), **options)).config.scheduler.async_scheduling

    guesses = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
    assert not is_ahead()
    assert is_ahead(distributed_executor_backend="mp") and is_ahead(tensor_parallel_size=2)
    assert not is_ahead(distributed_executor_backend="mp", async_scheduling=False)
    assert not is_ahead(pipeline_parallel_size=2)
    assert not is_ahead(distributed_executor_backend="mp", speculative_config=guesses)
    assert "async_scheduling" not in caplog.text
    assert not is_ahead(async_scheduling=True)
    assert "async_scheduling has no effect: the worker computes in the scheduler's own process" in caplog.text
