"""speculative_config: vLLM's keys, their defaults, and what is refused by name."""

from __future__ import annotations

import pytest

from octavo.config import EngineArgs
from octavo.config.speculative import SpeculativeConfig
from octavo.engine.speculation import speculative_config
from octavo.errors import ConfigError, UnsupportedError


def decide(**options):
    return speculative_config(EngineArgs(speculative_config=options))


def test_nothing_is_guessed_unless_asked_for():
    assert speculative_config(EngineArgs()) is None
    assert decide() is None


def test_defaults_are_those_of_vllm():
    assert decide(method="ngram", num_speculative_tokens=4) == SpeculativeConfig("ngram", 4, 5, 5)
    assert decide(model="ngram", num_speculative_tokens=4, prompt_lookup_max=3) == SpeculativeConfig("ngram", 4, 3, 3)
    assert decide(method="ngram", num_speculative_tokens=4, prompt_lookup_min=2).prompt_lookup_max == 2
    assert decide(method="suffix").num_speculative_tokens == 24
    assert decide(method="suffix", suffix_decoding_max_tree_depth=9).num_speculative_tokens == 9


def test_short_forms_and_keys_that_ask_for_nothing():
    args = EngineArgs(spec_method="ngram", spec_tokens=7, speculative_config={"num_speculative_tokens": 3})
    assert speculative_config(args) == SpeculativeConfig("ngram", 7)
    neutral = {"rejection_sample_method": "standard", "parallel_drafting": False, "quantization": None}
    assert decide(method="suffix", **neutral) == decide(method="suffix")


def test_a_draft_model_needs_slots_for_its_guesses():
    config = decide(model="some/draft", num_speculative_tokens=3, revision="main")
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
        ({"method": "ngrams", "num_speculative_tokens": 4}, "ngram, suffix"),
        ({"method": "suffix", "num_speculative_token": 4}, "did you mean num_speculative_tokens"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": float("nan")}, "at least 0"),
        ({"method": "suffix", "num_speculative_tokens_per_batch_size": [[4, 1, 5]]}, "least and greatest"),
        ({"method": "suffix", "num_speculative_tokens_per_batch_size": 5}, "least and greatest"),
        ({"num_speculative_tokens": 4}, "method"),
        ({"method": "draft_model", "num_speculative_tokens": 4}, "needs model"),
        ({"model": "some/draft"}, "num_speculative_tokens"),
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
        *({"method": m, "num_speculative_tokens": 2} for m in ("eagle", "eagle3", "medusa", "mtp")),
        {"method": "suffix", "rejection_sample_method": "block"},
        {"method": "suffix", "draft_sample_method": "probabilistic"},
        {"method": "suffix", "parallel_drafting": True},
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_by_name(options):
    with pytest.raises(UnsupportedError, match=str(next(iter(options.values()))) + "|not supported"):
        decide(**options)
