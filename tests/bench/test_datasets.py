"""Prompts of benchmarks: right lengths, the same for the same seed, and files that are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.entrypoints.bench.dataset_arguments import tokenizer_of
from octavo.entrypoints.bench.datasets import DatasetOptions, make_prompts
from octavo.errors import ConfigError
from octavo.tokenizers.tokenizer import Tokenizer
from tests.tiny_models import llama_config, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    llama_config().save_pretrained(folder)
    write_tokenizer(folder)
    return tokenizer_of(str(folder))


def conversation(*texts: str) -> dict:
    return {"conversations": [{"from": "x", "value": text} for text in texts]}


def test_random_prompts_have_the_asked_lengths_as_the_server_will_read_them(tokenizer: Tokenizer):
    prompts = make_prompts(DatasetOptions("random", 20, seed=0, input_len=50, output_len=7), tokenizer)
    lengths = [len(tokenizer.encode(prompt.text, add_special_tokens=False)) for prompt in prompts]
    assert lengths == [prompt.prompt_len for prompt in prompts]
    assert lengths.count(50) >= 18 and all(abs(length - 50) <= 2 for length in lengths)
    assert {prompt.output_len for prompt in prompts} == {7}


def test_a_seed_gives_the_same_prompts_and_another_seed_others(tokenizer: Tokenizer):
    first, again, other = (
        make_prompts(DatasetOptions("random", 5, seed, input_len=20), tokenizer) for seed in (3, 3, 4)
    )
    assert first == again and first != other


def test_a_range_ratio_spreads_both_lengths(tokenizer: Tokenizer):
    options = DatasetOptions("random", 60, 0, input_len=40, output_len=40, range_ratio=0.5)
    outputs = [prompt.output_len for prompt in make_prompts(options, tokenizer)]
    assert min(outputs) >= 20 and max(outputs) <= 60 and len(set(outputs)) > 10


def test_prefix_repetition_has_so_many_beginnings(tokenizer: Tokenizer):
    options = DatasetOptions(
        "prefix_repetition", 12, 0, repeated_prefix_len=40, repeated_suffix_len=10, num_repeated_prefixes=3
    )
    prompts = make_prompts(options, tokenizer)
    beginnings = {prompt.text[:30] for prompt in prompts}
    assert len(beginnings) == 3 and len({prompt.text for prompt in prompts}) == 12


def test_sharegpt_takes_first_turns_and_leaves_out_what_is_too_short_or_malformed(tokenizer: Tokenizer, tmp_path: Path):
    path = tmp_path / "talks.json"
    good = conversation("Write a long text about tokenizers please", "An answer that is long enough to count")
    path.write_text(json.dumps([good, conversation("a", "b"), conversation("only one"), {"x": 1}, "odd"]))
    prompts = make_prompts(DatasetOptions("sharegpt", 3, 0, path=str(path)), tokenizer)
    assert [prompt.text for prompt in prompts] == ["Write a long text about tokenizers please"] * 3
    answer = "An answer that is long enough to count"
    assert prompts[0].output_len == len(tokenizer.encode(answer, add_special_tokens=False))
    (fixed,) = make_prompts(DatasetOptions("sharegpt", 1, 0, path=str(path), sharegpt_output_len=9), tokenizer)
    assert fixed.output_len == 9


def test_custom_prompts_go_through_the_chat_template_unless_told_otherwise(tokenizer: Tokenizer, tmp_path: Path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "One"}\n\n{"prompt": "Two", "output_tokens": 5}\n')
    options = dict(path=str(path), shuffle=False)
    plain = make_prompts(DatasetOptions("custom", 2, 0, **options, custom_skip_chat_template=True), tokenizer)
    assert [(prompt.text, prompt.output_len) for prompt in plain] == [("One", 256), ("Two", 256)]
    templated = make_prompts(DatasetOptions("custom", 1, 0, **options), tokenizer)
    assert templated[0].text == "<|im_start|>user\nOne<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(ConfigError, match=r"own.jsonl:1: \"output_tokens\""):
        make_prompts(DatasetOptions("custom", 2, 0, **options, custom_output_len=-1), tokenizer)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [("{", "custom", "bad:1: not JSON"), ("[1]", "custom", 'text "prompt"'), ("{}", "sharegpt", "a JSON list")],
)
def test_files_of_another_shape_are_refused_by_name(
    tokenizer: Tokenizer, tmp_path: Path, content: str, name: str, message: str
):
    path = tmp_path / "bad"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        make_prompts(DatasetOptions(name, 1, 0, path=str(path)), tokenizer)


def test_what_cannot_become_prompts_is_refused_before_there_is_a_tokenizer(tmp_path: Path):
    with pytest.raises(ConfigError, match="needs --dataset-path"):
        DatasetOptions("sharegpt", 1, 0)
    with pytest.raises(ConfigError, match=r"there is no .*nothing"):
        DatasetOptions("custom", 1, 0, path=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="--num-prompts"):
        DatasetOptions("random", 0, 0)
