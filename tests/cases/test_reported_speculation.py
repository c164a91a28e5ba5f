"""Reported faults of speculative decoding, restated for this engine; see docs/cases.md."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.loader.catalog import pull
from tests.engine.processes import comparable
from tests.speculative.oracle import guessing as guessing_as_much_as_allowed

pytestmark = pytest.mark.model

NGRAM = {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
WORDS = ["one two three", "the cat sat", "a b c d e", "x = x + 1", "ha ha ha", "1, 2, 3, 4", "so it goes", "é è ê"]
REPETITIVE = [f"Repeat: {words}. {words}. {words}. {words}." for words in WORDS]


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[LLM, LLM]]:
    path = str(pull("smollm2-135m-instruct", lambda progress: None))
    options = {"max_model_len": 512, "max_num_seqs": 16, "num_gpu_blocks_override": 512, "use_tqdm_on_load": False}
    plain, guessing = LLM(path, **options), LLM(path, **options, speculative_config=NGRAM)
    with guessing_as_much_as_allowed():
        yield plain, guessing
    plain.llm_engine.shutdown()
    guessing.llm_engine.shutdown()


def same(engines: tuple[LLM, LLM], prompts: list[str], params: SamplingParams | list[SamplingParams]) -> list:
    """Run on both engines; the results must be equal in everything that a user sees, with guesses."""
    plain, guessing = engines
    before = num_guesses(guessing)
    expected = plain.generate(prompts, params, use_tqdm=False)
    got = guessing.generate(prompts, params, use_tqdm=False)
    assert [comparable(output) for output in got] == [comparable(output) for output in expected]
    assert num_guesses(guessing) > before
    return [output.outputs[0] for output in got]


def num_guesses(llm: LLM, which: str = "draft") -> int:
    name = f"vllm:spec_decode_num_{which}_tokens"
    return next(metric.value for metric in llm.get_metrics() if metric.name == name)


@pytest.mark.native_ops
def test_b028_logprobs_are_those_without_guesses(engines):
    for completion in same(engines, REPETITIVE[:3], SamplingParams(temperature=0, max_tokens=30, logprobs=1)):
        chosen = zip(completion.logprobs, completion.token_ids, strict=True)
        assert any(position[token_id].logprob < -1e-3 for position, token_id in chosen)


def test_b076_guesses_follow_the_grammar(engines):
    schema = {
        "type": "object",
        "properties": {name: {"enum": ["red", "green", "blue"]} for name in ("first", "second", "third", "fourth")},
        "required": ["first", "second", "third", "fourth"],
        "additionalProperties": False,
    }
    prompts = [f'{{"first":"red","second":"red","third":"red","fourth":"red"}} again, number {i}: ' for i in range(8)]
    wish = StructuredOutputsParams(json=schema)
    for completion in same(engines, prompts, SamplingParams(temperature=0, max_tokens=80, structured_outputs=wish)):
        assert set(json.loads(completion.text)) == set(schema["properties"])


@pytest.mark.native_ops
def test_b111_greedy_text_limits_and_stops_inside_a_guess(engines):
    whole = same(engines, REPETITIVE, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    for max_tokens in (3, 7, 13):
        cut = same(engines, REPETITIVE, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))
        assert [c.token_ids for c in cut] == [c.token_ids[:max_tokens] for c in whole]
    stops = [completion.text[20:24] for completion in whole]
    params = [SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=[stop]) for stop in stops]
    for completion, stop, complete in zip(same(engines, REPETITIVE, params), stops, whole, strict=True):
        assert completion.stop_reason == stop and completion.text == complete.text[: complete.text.index(stop)]
    ids = [completion.token_ids[12] for completion in whole]
    params = [SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop_token_ids=[i]) for i in ids]
    for completion, token_id, complete in zip(same(engines, REPETITIVE, params), ids, whole, strict=True):
        end = complete.token_ids.index(token_id) + 1
        assert completion.token_ids == complete.token_ids[:end] and completion.stop_reason == token_id
    assert num_guesses(engines[1], "accepted") > 100
