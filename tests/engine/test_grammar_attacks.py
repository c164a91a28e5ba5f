"""Grammars that are made to hurt, beside requests that have nothing to do with them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.errors import InvalidRequestError
from octavo.loader.catalog import pull
from octavo.types.request import GRAMMAR_GAVE_UP

pytestmark = pytest.mark.model

PROMPT = "List people with their names and hobbies as JSON: "
Wish = StructuredOutputsParams


def nested(num_levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(num_levels):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}}
    return schema


def referring(num_levels: int) -> dict[str, object]:
    """Return a schema in which every definition refers to the next one twice, and the last one to the first."""
    names = [f"d{level}" for level in range(num_levels)]
    following = [*names[1:], names[0]]
    definitions = {
        name: {"type": "object", "properties": {"l": {"$ref": f"#/$defs/{after}"}, "r": {"$ref": f"#/$defs/{after}"}}}
        for name, after in zip(names, following, strict=True)
    }
    return {"$ref": "#/$defs/d0", "$defs": definitions}


SUDDEN = 'start: a\na: a a | "x" | "Y" l\nl: l? /[a-z ]/'  # cheap masks as long as there are only x
ATTACKS = {
    "ambiguous": Wish(grammar="start: a\na: a a | /[a-z ]/"),
    "more ambiguous": Wish(grammar="start: a\na: a a a | a a | /[a-z ]{1,3}/"),
    "sudden": Wish(grammar=SUDDEN),
    "behind a text": Wish(grammar='start: "The names are " a\na: a a | /[a-z ]/'),
    "without an end": Wish(grammar='start: a\na: a a | "x" | ""'),
    "long first mask": Wish(grammar="root ::= " + '("a" | "b")*' * 1000),
    "catastrophic regex": Wish(regex="(a+)+b"),
    "nested repetition": Wish(regex="(x{1,1000}){1,1000}"),
    "many states": Wish(json={"type": "string", "pattern": "^(a|b)*a(a|b){200}$"}),
    "huge enum": Wish(json={"enum": [f"value {i} {i * 7919 % 10007}" for i in range(20_000)]}),
    "many objects": Wish(json=nested(7)),
    "deep": Wish(json='{"items":' * 60 + "{}" + "}" * 60),
    "references": Wish(json=referring(200)),
    "unique items": Wish(json={"type": "array", "uniqueItems": True, "items": {"enum": list(range(2000))}}),
    "crash": Wish(grammar='start: %json {"const": -9223372036854775808}'),
}


@pytest.fixture(scope="module", params=[None, "ngram"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    drafts = request.param and {"method": request.param, "num_speculative_tokens": 5}
    llm = LLM(
        str(pull("smollm2-135m-instruct", lambda progress: None)),
        max_model_len=256, max_num_seqs=8, num_gpu_blocks_override=40, speculative_config=drafts,
        use_tqdm_on_load=False,
    )  # fmt: skip
    yield llm
    llm.llm_engine.shutdown()


def plain(index: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=index, max_tokens=60, ignore_eos=True)


def attacking(wish: StructuredOutputsParams, **fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "seed": 1, "max_tokens": 30, "structured_outputs": wish, **fields})


@pytest.mark.native_ops
def test_neighbours_are_who_they_were(llm: LLM):
    """All attacks at once, in a cache that is too small, some of them twice, and some given up in the middle."""
    engine, prompts = llm.llm_engine, [f"{PROMPT}{i}" for i in range(3)]
    expected = [
        llm.generate([prompt], plain(i), use_tqdm=False)[0].outputs[0].token_ids for i, prompt in enumerate(prompts)
    ]
    for i, prompt in enumerate(prompts):
        engine.add_request(f"plain-{i}", prompt, plain(i))
    names, given_up = [], set()
    for name, wish in ATTACKS.items():
        for i in range(2):
            try:
                engine.add_request(f"{name} {i}", PROMPT, attacking(wish, n=1 + i, seed=i))
                names.append(f"{name} {i}")
            except InvalidRequestError as error:
                assert "cannot be enforced" in str(error)
    assert len(names) > 20
    ended = {}
    num_steps = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                ended[output.request_id] = output
        num_steps += 1
        if num_steps % 20 == 0 and num_steps < 100:
            given_up.add(names[num_steps // 20])
            engine.abort_request([names[num_steps // 20]])
    assert [ended[f"plain-{i}"].outputs[0].token_ids for i in range(3)] == expected
    for name in set(names) - given_up:
        for completion in ended[name].outputs:
            if completion.finish_reason == "error":
                assert str(completion.stop_reason).startswith(GRAMMAR_GAVE_UP)
            elif completion.finish_reason == "stop" and ATTACKS[name[:-2]].json is not None:
                json.loads(completion.text)
    core = engine.engine_core.engine_core
    assert core.scheduler_stats().kv_cache_usage == 0 and not core._grammars._places
