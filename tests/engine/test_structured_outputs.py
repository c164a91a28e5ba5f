"""Structured outputs through a whole engine: limits, neighbours, preemption, recovery, other parameters."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from unittest.mock import ANY

import pytest

from octavo import LLM, AsyncLLM, EngineArgs, SamplingParams, StructuredOutputsParams
from octavo.engine.supervisor import CoreSupervisor
from octavo.errors import InvalidRequestError
from octavo.loader.catalog import pull
from octavo.types.outputs import CompletionOutput

pytestmark = pytest.mark.model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = "Describe a person as JSON with name and age:\n"


@pytest.fixture(scope="module")
def path() -> str:
    return str(pull("smollm2-135m-instruct", lambda progress: None))


@pytest.fixture(scope="module")
def llm(path: str) -> Iterator[LLM]:
    llm = LLM(path, max_model_len=512, max_num_seqs=8, num_gpu_blocks_override=128, use_tqdm_on_load=False)
    yield llm
    llm.llm_engine.shutdown()


def wish(**fields) -> StructuredOutputsParams:
    return StructuredOutputsParams(**fields)


def params(structured: StructuredOutputsParams | None, **fields) -> SamplingParams:
    return SamplingParams(structured_outputs=structured, **{"temperature": 0, "max_tokens": 60, **fields})


def run(llm: LLM, structured: StructuredOutputsParams | None, prompt: str = PROMPT, **fields) -> CompletionOutput:
    (output,) = llm.generate([prompt], params(structured, **fields), use_tqdm=False)
    return output.outputs[0]


def test_every_kind_of_constraint_is_followed(llm: LLM):
    person = json.loads(run(llm, wish(json=PERSON)).text)
    assert set(person) == {"name", "age"}
    assert run(llm, wish(choice=["naïve", "日本"])).text in ("naïve", "日本")
    assert run(llm, wish(regex=r"\d{3}-\d{4}")).text.replace("-", "").isdigit()
    assert run(llm, wish(grammar='root ::= "yes" | "no"')).text in ("yes", "no")
    assert run(llm, wish(grammar='start: "yes" | "no"')).text in ("yes", "no")
    tag = {"begin": "<person>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</person>"}
    text = run(llm, wish(structural_tag={"format": {"type": "tag", **tag}})).text
    assert set(json.loads(text.removeprefix("<person>").removesuffix("</person>"))) == {"name", "age"}
    free = run(llm, wish(json_object=True), max_tokens=100, temperature=1.0, seed=3)
    assert free.text.startswith("{") and (free.finish_reason == "length" or isinstance(json.loads(free.text), dict))


def test_answer_ends_with_its_grammar_and_is_shown_whole(llm: LLM):
    output = run(llm, wish(json=PERSON))
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    assert output.text.endswith("}")
    assert llm.get_tokenizer().decode(output.token_ids) == output.text, "no end-of-sequence token is needed"


def test_answer_that_may_go_on_ends_with_end_of_sequence(llm: LLM):
    output = run(llm, wish(regex="[a-z ]*"), max_tokens=200, temperature=1.0, seed=1)
    if output.finish_reason == "stop":
        assert output.token_ids[-1] in llm.model_config.eos_token_ids
    assert all(character in "abcdefghijklmnopqrstuvwxyz " for character in output.text)


def test_limit_inside_a_value_ends_with_length(llm: LLM):
    output = run(llm, wish(json=PERSON), max_tokens=4)
    assert (output.finish_reason, len(output.token_ids)) == ("length", 4)


def test_what_cannot_be_enforced_is_refused_before_anything_runs(llm: LLM):
    for bad in (wish(regex="(?=a)b"), wish(grammar='start: %json {"const": -9223372036854775808}')):
        with pytest.raises(InvalidRequestError, match="cannot be enforced"):
            run(llm, bad)
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.llm_engine.engine_core.scheduler_stats()[0].kv_cache_usage == 0
    assert run(llm, wish(json=PERSON)).finish_reason == "stop"


@pytest.mark.native_ops
def test_constrained_tokens_are_the_same_alone_and_in_a_crowd(llm: LLM):
    """The neighbours have other grammars, none, or are several; the KV cache is small enough for preemptions."""
    wishes = [
        params(wish(json=PERSON), seed=1, temperature=1.0),
        params(wish(json=PERSON), seed=2, temperature=1.0),
        params(wish(json={"type": "array", "items": {"type": "integer"}, "maxItems": 9}), temperature=0.7, seed=3),
        params(wish(regex=r"([a-z]{2,8} ){3,9}"), seed=4, temperature=1.5),
        params(wish(choice=["red", "green", "blue"]), seed=5, temperature=1.0),
        params(None, seed=6, temperature=1.0, max_tokens=40, ignore_eos=True),
        params(wish(json=PERSON), n=2, seed=7, temperature=1.0),
        params(wish(grammar='root ::= ("ab" | "cd")+'), seed=8, temperature=1.0, max_tokens=50),
    ]
    prompts = [f"{PROMPT * (1 + i % 3)}Number {i}: " for i in range(len(wishes))]
    alone = [llm.generate([one], each, use_tqdm=False)[0] for one, each in zip(prompts, wishes, strict=True)]
    crowd = llm.generate(prompts, wishes, use_tqdm=False)
    for one, other in zip(alone, crowd, strict=True):
        assert [c.token_ids for c in one.outputs] == [c.token_ids for c in other.outputs]
    both = [json.loads(completion.text) for completion in crowd[6].outputs]
    assert len(both) == 2 and all(set(person) == {"name", "age"} for person in both)


@pytest.mark.native_ops
def test_grammars_survive_preemption(path: str):
    """8 requests of up to 100 tokens in a cache of 24 blocks: some lose theirs, and go on where they were."""
    wishes = [params(wish(regex=r"(\w{3,9} ){20,}"), seed=i, temperature=1.0, max_tokens=80) for i in range(8)]
    prompts = [f"Write words, list {i}:" for i in range(8)]
    results = []
    for num_blocks in (24, 200):
        llm = LLM(path, max_model_len=256, num_gpu_blocks_override=num_blocks, use_tqdm_on_load=False)
        results.append([output.outputs[0].token_ids for output in llm.generate(prompts, wishes, use_tqdm=False)])
        preemptions = llm.llm_engine.engine_core.scheduler_stats()[0].num_preemptions
        assert (preemptions > 0) == (num_blocks == 24)
        llm.llm_engine.shutdown()
    assert results[0] == results[1]


NGRAMS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


@pytest.mark.native_ops
@pytest.mark.parametrize("speculation", [None, NGRAMS])
def test_tokens_are_the_same_however_late_masks_are(
    path: str, monkeypatch: pytest.MonkeyPatch, speculation: dict[str, object] | None
):
    """Masks that a step does not wait for, masks and tokens beside the steps, in a small cache and with guesses too."""
    wishes = [
        params(wish(json=PERSON), seed=1, temperature=1.0, n=2),
        params(wish(regex=r"(\w{3,9} ){20,}"), seed=2, temperature=1.0, max_tokens=90, n=3, logprobs=2),
        params(wish(grammar='root ::= ("ab" | "cd")+'), seed=3, temperature=1.0, max_tokens=40),
        params(wish(grammar="start: a\na: a a | /[a-z ]/"), seed=4, temperature=1.0, max_tokens=12),
        params(wish(json={"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 3, 12]}}), seed=5),
        params(wish(choice=["red", "green", "red and blue"]), seed=6, temperature=1.0, prompt_logprobs=1),
        params(None, seed=7, temperature=1.0, max_tokens=40, ignore_eos=True),
    ]
    prompts = [f"{PROMPT}Words, list {i}: ab cd ab cd ab cd" for i in range(len(wishes))]
    llm = LLM(
        path, max_model_len=256, num_gpu_blocks_override=18, speculative_config=speculation,
        use_tqdm_on_load=False,
    )  # fmt: skip
    try:
        expected = [shown(output) for output in llm.generate(prompts, wishes, use_tqdm=False)]
        client = llm.llm_engine.engine_core
        manager = client.engine_core._grammars
        late = delay_masks(manager, monkeypatch)
        assert [shown(output) for output in llm.generate(prompts, wishes, use_tqdm=False)] == expected
        stats = client.scheduler_stats()[0]
        assert stats.kv_cache_usage == 0 and stats.num_preemptions > 0
        assert late and any(late) == (speculation is not None), "some of the late masks were of guesses"
        assert not manager._places and not manager._arriving
    finally:
        llm.llm_engine.shutdown()


def delay_masks(manager, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a third of all masks be too late and half of the others slow; return how many drafts the late ones had."""
    chance, late, backend = random.Random(1), [], manager._ready_filler().backend
    fill, bitmask = backend.fill_mask, manager.bitmask

    def fill_late(matcher, mask):
        if chance.random() < 0.3:
            time.sleep(0.01)
        monkeypatch.setattr("octavo.structured.mask_filler._SLOW_MASK_S", chance.choice([-1, 1]))
        fill(matcher, mask)

    def note_late(request_ids, drafts):
        output = bitmask(request_ids, drafts)
        late.extend(len(drafts.get(name, ())) for name in (output.late_request_ids if output is not None else ()))
        return output

    monkeypatch.setattr(backend, "fill_mask", fill_late)
    monkeypatch.setattr(manager, "bitmask", note_late)
    return late


def shown(output) -> list[object]:
    """Return all that a user sees of a request."""
    completions = [
        (one.text, one.token_ids, one.finish_reason, one.stop_reason, one.logprobs) for one in output.outputs
    ]
    return [completions, output.prompt_logprobs]


@pytest.mark.native_ops
def test_grammars_survive_the_death_of_the_engine_process(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OCTAVO_ENABLE_MULTIPROCESSING", "1")
    llm = LLM(path, max_model_len=256, num_gpu_blocks_override=100, use_tqdm_on_load=False)
    engine = llm.llm_engine
    structured = params(wish(regex=r"(\w{3,9} ){20,}"), seed=1, temperature=1.0, max_tokens=60)
    try:
        expected = llm.generate([PROMPT], structured, use_tqdm=False)[0].outputs[0].token_ids
        engine.add_request("again", PROMPT, structured)
        text, has_killed = [], False
        while engine.has_unfinished_requests():
            for output in engine.step():
                text = output.outputs[0].token_ids
                if len(text) > 10 and not has_killed:
                    has_killed = True
                    os.kill(engine.engine_core._replicas.supervisors[0].child.process_id, signal.SIGKILL)
        assert has_killed and text == expected
    finally:
        engine.shutdown()


def test_grammar_and_other_parameters_hold_together(llm: LLM):
    tokenizer = llm.get_tokenizer()
    # the grammar's end counts, even before min_tokens and where end-of-sequence is ignored
    assert run(llm, wish(choice=["ab"]), min_tokens=20).text == "ab"
    assert run(llm, wish(choice=["ab"]), ignore_eos=True).finish_reason == "stop"
    # where it may go on, both are obeyed
    assert len(run(llm, wish(regex="(ab)*"), min_tokens=20, max_tokens=25).token_ids) >= 20
    assert run(llm, wish(regex="(ab)*"), ignore_eos=True, max_tokens=25).finish_reason == "length"
    # stop strings cut the text where they are found; stop ids count where the grammar allows them
    stopped = run(llm, wish(regex="(ab){30}"), stop=["bab"])
    assert (stopped.text, stopped.stop_reason) == ("a", "bab")
    (comma,) = tokenizer.encode(",", add_special_tokens=False)
    numbers = wish(regex="[0-9](,[0-9])*")
    assert run(llm, numbers, stop_token_ids=[comma], allowed_token_ids=[comma, *range(32, 42)]).stop_reason == comma
    # what both allow is allowed
    (yes,) = tokenizer.encode("yes", add_special_tokens=False)
    assert run(llm, wish(choice=["yes", "no"]), logit_bias={yes: -100}).text == "no"
    assert run(llm, wish(choice=["yes", "no"]), bad_words=["no", "n"]).text == "yes"
    nothing = run(llm, wish(choice=["yes"]), allowed_token_ids=[comma])
    assert nothing.finish_reason == "error" and "no token is left" in str(nothing.stop_reason)


def test_grammar_begins_where_reasoning_ends(llm: LLM):
    engine = llm.llm_engine
    (marker,) = engine.get_tokenizer().encode(".", add_special_tokens=False)
    engine.add_request(
        "r", "The capital of France is", params(wish(regex=" [0-9]{4}")), reasoning_end_token_ids=[marker]
    )
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    thought, dot, answer = outputs[-1].outputs[0].text.partition(".")
    assert "Paris" in thought and dot and answer.strip().isdigit() and len(answer) == 5
    (unmarked,) = llm.generate(["The capital of France is"], params(wish(regex=" [0-9]{4}")), use_tqdm=False)
    assert unmarked.outputs[0].text.strip().isdigit()


def test_beams_are_refused(llm: LLM):
    from octavo.types.sampling_params import BeamSearchParams

    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        llm.beam_search([PROMPT], BeamSearchParams(beam_width=2, max_tokens=4, structured_outputs=wish(regex="a")))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"backend": "outlines"}, "backend"),
        ({"disable_any_whitespace": 1}, "disable_any_whitespace"),
        ({"other": True}, "other"),
    ],
)
def test_wrong_options_are_refused_by_name(path: str, options, reason):
    from octavo.errors import ConfigError

    with pytest.raises(ConfigError, match=reason):
        LLM(path, structured_outputs_config=options)


@pytest.mark.skipif(find_spec("xgrammar") is not None, reason="the extra is installed")
def test_backend_that_is_not_installed_is_refused_with_its_extra(path: str):
    from octavo.errors import ConfigError

    with pytest.raises(ConfigError, match=r"octavo\[xgrammar\]"):
        LLM(path, structured_outputs_config={"backend": "xgrammar"})


def test_options_of_the_engine_hold(path: str):
    llm = LLM(
        path, max_model_len=256, num_gpu_blocks_override=64, use_tqdm_on_load=False,
        structured_outputs_config={"backend": "auto", "disable_any_whitespace": False},
    )  # fmt: skip
    try:
        seen = llm.llm_engine.input_processor.process("r", PROMPT, params(wish(json=PERSON))).request.grammar
        assert '"whitespace_flexible": true' in seen.source
    finally:
        llm.llm_engine.shutdown()


def test_the_cores_learn_the_vocabulary_before_they_hear_of_a_request(path: str, monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr(CoreSupervisor, "call", record(calls, CoreSupervisor.call))
    monkeypatch.setattr(CoreSupervisor, "add_request", record(calls, CoreSupervisor.add_request))

    async def answer() -> str:
        engine = AsyncLLM.from_engine_args(EngineArgs(path, max_model_len=64))
        assert calls == ["load_vocabulary"]
        try:
            stream = engine.generate("Say", params(wish(choice=["yes"])), "a")
            return [output.outputs[0].text async for output in stream][-1]
        finally:
            engine.shutdown()

    assert asyncio.run(answer()) == "yes"
    assert [one for one in calls if one == "load_vocabulary" or not isinstance(one, str)] == ["load_vocabulary", ANY]


def record(calls: list[object], method: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(supervisor: CoreSupervisor, first: object, *args: object) -> Any:
        calls.append(first)
        return method(supervisor, first, *args)

    return recorded
