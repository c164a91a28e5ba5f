"""speculative_config: vLLM's keys, their defaults, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.config import EngineArgs, LoadConfig
from octavo.config.speculative import SpeculativeConfig
from octavo.engine.speculation import speculative_config
from octavo.errors import ConfigError, UnsupportedError
from octavo.loader.checkpoint import Checkpoint
from octavo.loader.hf_config import HFConfig


def checkpoint(**config) -> Checkpoint:
    return Checkpoint("some/model", Path("some/model"), "safetensors", HFConfig(config))


def decide(model_config=None, **options):
    args = EngineArgs(speculative_config=options)
    return speculative_config(args, checkpoint(**(model_config or {})), LoadConfig())


def test_nothing_is_guessed_unless_asked_for():
    assert speculative_config(EngineArgs(), checkpoint(), LoadConfig()) is None
    assert decide() is None


def test_defaults_are_those_of_vllm():
    assert decide(method="ngram", num_speculative_tokens=4) == SpeculativeConfig("ngram", 4, 5, 5)
    assert decide(model="ngram", num_speculative_tokens=4, prompt_lookup_max=3) == SpeculativeConfig("ngram", 4, 3, 3)
    assert decide(method="ngram", num_speculative_tokens=4, prompt_lookup_min=2).prompt_lookup_max == 2
    assert decide(method="suffix").num_speculative_tokens == 24
    assert decide(method="suffix", suffix_decoding_max_tree_depth=9).num_speculative_tokens == 9
    assert decide(method="suffix", suffix_decoding_max_tree_depth=500).num_speculative_tokens == 128


def test_short_forms_and_keys_that_ask_for_nothing():
    args = EngineArgs(spec_method="ngram", spec_tokens=7, speculative_config={"num_speculative_tokens": 3})
    assert speculative_config(args, checkpoint(), LoadConfig()) == SpeculativeConfig("ngram", 7)
    neutral = {"rejection_sample_method": "standard", "parallel_drafting": False, "quantization": None}
    assert decide(method="suffix", **neutral) == decide(method="suffix")


def test_a_draft_model_needs_slots_for_its_guesses():
    config = decide(method="draft_model", model="some/draft", num_speculative_tokens=3, revision="main")
    assert config == SpeculativeConfig("draft_model", 3, model="some/draft", revision="main")
    assert config.num_lookahead_tokens == 3 and decide(method="suffix").num_lookahead_tokens == 0


def test_guesses_by_batch_size():
    config = decide(method="suffix", num_speculative_tokens_per_batch_size=[[1, 4, 5], [5, 32, 2]])
    assert config.num_speculative_tokens_per_batch_size == ((1, 4, 5), (5, 32, 2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "ngram"}, "num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "at least 1"),
        ({"method": "ngram", "num_speculative_tokens": 129}, "1 to 128"),
        ({"method": "ngram", "num_speculative_tokens": "4"}, "whole number"),
        ({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 6, "prompt_lookup_max": 5}, "6"),
        ({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 10**9}, "at most 128, got 1000000000"),
        ({"method": "ngrams", "num_speculative_tokens": 4}, "ngram, suffix"),
        ({"method": "suffix", "num_speculative_token": 4}, "did you mean num_speculative_tokens"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": float("nan")}, "at least 0"),
        ({"method": "suffix", "num_speculative_tokens_per_batch_size": [[4, 1, 5]]}, "least and greatest"),
        ({"method": "suffix", "num_speculative_tokens_per_batch_size": 5}, "least and greatest"),
        ({"num_speculative_tokens": 4}, "method"),
        ({"method": "draft_model", "num_speculative_tokens": 4}, "needs model"),
        ({"method": "medusa", "num_speculative_tokens": 4}, "needs model"),
        ({"method": "eagle3", "model": "some/draft"}, "num_speculative_tokens"),
        ({"method": "eagle3", "model": 3, "num_speculative_tokens": 4}, "name"),
        ({"method": "eagle3", "model": "some/draft", "revision": 3, "num_speculative_tokens": 4}, "revision"),
        ({"method": "suffix", "model": "some/draft"}, "no meaning"),
    ],
    ids=str,
)
def test_wrong_values_are_named(options, words):
    with pytest.raises(ConfigError, match=words):
        decide(**options)


@pytest.mark.parametrize(
    "options",
    [
        *({"method": m, "num_speculative_tokens": 2} for m in ("mlp_speculator", "dflash", "ngram_gpu")),
        {"method": "suffix", "rejection_sample_method": "block"},
        {"method": "suffix", "draft_sample_method": "probabilistic"},
        {"method": "suffix", "parallel_drafting": True},
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_by_name(options):
    with pytest.raises(UnsupportedError, match=str(next(iter(options.values()))) + "|not supported"):
        decide(**options)


@pytest.mark.parametrize(
    ("folder", "config", "method"),
    [
        ("EAGLE-LLaMA3-Instruct-8B", {"architectures": ["LlamaForCausalLM"]}, "eagle"),
        ("EAGLE3-LLaMA3.1-Instruct-8B", {"architectures": ["LlamaForCausalLM"]}, "eagle3"),
        ("heads", {"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ("heads", {"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ("heads", {"model_type": "medusa"}, "medusa"),
        ("heads", {"medusa_num_heads": 3}, "medusa"),
        ("model", {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}, "mtp"),
        ("model", {"architectures": ["LlamaForCausalLM"]}, "draft_model"),
    ],
)
def test_the_method_follows_from_the_weights(tmp_path, folder, config, method):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "config.json").write_text(json.dumps(config))
    (tmp_path / folder / "model.safetensors").write_bytes(b"")
    decided = decide(model=str(tmp_path / folder), num_speculative_tokens=2)
    assert decided.method == method and decided.num_lookahead_tokens == (0 if method == "medusa" else 2)


def test_mtp_layers_lie_in_the_model_and_say_how_many_guesses():
    mimo = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    assert decide(mimo, method="mtp") == SpeculativeConfig("mtp", 1)
    assert decide(mimo, method="mimo_mtp", num_speculative_tokens=3) == SpeculativeConfig("mtp", 3)
    with pytest.raises(UnsupportedError, match="2; one"):
        decide({**mimo, "num_nextn_predict_layers": 2}, method="mtp")
    with pytest.raises(UnsupportedError, match="DeepseekV3ForCausalLM are not built"):
        decide({"architectures": ["DeepseekV3ForCausalLM"]}, method="deepseek_mtp")
