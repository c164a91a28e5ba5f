"""Reported faults of structured outputs, restated for this engine; see docs/cases.md."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.config import EngineArgs
from octavo.engine.async_llm import AsyncLLM
from octavo.errors import InvalidRequestError
from octavo.loader.catalog import pull
from octavo.types.sampling_params import RequestOutputKind

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def path() -> str:
    return str(pull("smollm2-135m-instruct", lambda progress: None))


@pytest.fixture(scope="module")
def llm(path: str) -> Iterator[LLM]:
    llm = LLM(path, max_model_len=1024, max_num_seqs=16, num_gpu_blocks_override=512, use_tqdm_on_load=False)
    yield llm
    llm.llm_engine.shutdown()


def object_of(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties, the first of them required, and no others."""
    required = list(properties)[:1]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def wish(**fields: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(**fields)


def texts(llm: LLM, structured: StructuredOutputsParams, prompts: list[str], **fields: Any) -> list[tuple[str, str]]:
    """Return (text, finish reason) of each prompt; seeds differ."""
    params = [SamplingParams(structured_outputs=structured, seed=i, **fields) for i in range(len(prompts))]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [(output.outputs[0].text, str(output.outputs[0].finish_reason)) for output in outputs]


def test_b066_no_white_space_to_the_end(llm: LLM):
    pretty = json.dumps({"name": "Ann", "items": [1, 2]}, indent=4)
    things = ("car", "house", "tree", "person", "dog")
    prompts = [f"Write JSON like this:\n{pretty}\nNow {i} of a {thing}:\n" for i in range(2) for thing in things]
    schema = object_of(name={"type": "string", "maxLength": 30}, size={"type": "integer"})
    for structured in (wish(json_object=True), wish(json=schema)):
        for text, reason in texts(llm, structured, prompts, temperature=0, max_tokens=200):
            outside = re.sub(r'"(\\.|[^"\\])*("|$)', "", text)
            assert not re.search(r"\s", outside), "compact by default"
            if reason == "stop":
                assert isinstance(json.loads(text), dict)


def test_b067_limits_are_kept_at_any_temperature(llm: LLM):
    schema = {
        "type": "object",
        "properties": {
            "pair": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": 5},
                "minItems": 2,
                "maxItems": 2,
            },
            "code": {"type": "string", "minLength": 2, "maxLength": 4},
        },
        "required": ["pair", "code"],
        "additionalProperties": False,
    }
    prompts = [f"JSON {i}: " for i in range(50)]
    for text, reason in texts(llm, wish(json=schema), prompts, temperature=1.5, max_tokens=120):
        assert reason == "stop"
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("pattern", ["^hello(?!x)$", "(?<=a)b", r"(a)\1", "(unclosed", "a{3,1}"])
def test_b070_patterns_that_cannot_be_compiled_are_refused(llm: LLM, pattern: str):
    with pytest.raises(InvalidRequestError, match=r"structured_outputs\.regex cannot be enforced"):
        texts(llm, wish(regex=pattern), ["x"], temperature=0, max_tokens=60)
    # in a schema, what can be rewritten without its look-around is followed; nothing is ever ignored
    schema = object_of(a={"type": "string", "pattern": pattern, "maxLength": 20})
    try:
        ((text, reason),) = texts(llm, wish(json=schema), ["x"], temperature=1, max_tokens=100)
    except InvalidRequestError as error:
        assert "pattern" in str(error)
    else:
        assert reason == "stop"
        jsonschema.validate(json.loads(text), schema)
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.llm_engine.engine_core.scheduler_stats()[0].kv_cache_usage == 0


def test_b070_escapes_that_other_engines_stumble_over(llm: LLM):
    assert texts(llm, wish(regex=r"^hello\!$"), ["x"], temperature=0, max_tokens=9) == [("hello!", "stop")]


def test_b071_references(llm: LLM):
    kids = {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}}
    tree = object_of(color={"$ref": "#/$defs/color"}, kids=kids)
    schema = {"$defs": {"color": {"enum": ["red", "green"]}, "tree": tree}, "$ref": "#/$defs/tree"}
    item = {"type": "array", "items": [{"const": 7}, {"$ref": "#/items/0"}], "minItems": 2, "maxItems": 2}
    nested = {"$defs": {"a": {"$defs": {"b": {"type": "boolean"}}, "$ref": "#/$defs/a/$defs/b"}}, "$ref": "#/$defs/a"}
    for each in (schema, item, nested):
        num_whole = 0
        for text, reason in texts(
            llm, wish(json=each), [f"A tree, {i}: " for i in range(8)], temperature=1, max_tokens=150
        ):
            if reason == "stop":
                num_whole += 1
                jsonschema.Draft7Validator(each).validate(json.loads(text))
        assert num_whole >= 4


def test_b073_unicode_is_written_directly(llm: LLM):
    moods, words = ["开心", "难过"], ["naïve", "日本"]
    schema = {
        "type": "object",
        "properties": {"größe": {"enum": moods}},
        "required": ["größe"],
        "additionalProperties": False,
    }
    for seed in range(5):
        ((text, reason),) = texts(llm, wish(json=schema), [f"Stimmung {seed}: "], temperature=1, max_tokens=60)
        assert reason == "stop" and "\\u" not in text and json.loads(text)["größe"] in moods
        ((text, reason),) = texts(llm, wish(choice=words), [f"Word {seed}: "], temperature=1, max_tokens=20)
        assert reason == "stop" and text in words


@pytest.mark.native_ops
def test_b075_a_mix_of_requests_leaves_each_alone(path: str):
    """Rounds of requests at random times: schemas, regex, choice, n = 2, one aborted; the plain one as if alone."""
    kinds = {"a": {"type": "integer", "minimum": 0, "maximum": 999}, "b": {"type": "boolean"}, "c": {"type": "null"}}
    schemas = [object_of(**{name: kind}) for name, kind in kinds.items()]

    async def run() -> None:
        engine = AsyncLLM.from_engine_args(
            EngineArgs(
                model=path, max_model_len=256, max_num_seqs=8, num_gpu_blocks_override=96, use_tqdm_on_load=False
            )
        )
        generator = random.Random(0)

        async def final(name: str, params: SamplingParams, is_aborted: bool = False) -> list[str]:
            await asyncio.sleep(generator.random() * 0.2)
            outputs = []
            async for output in engine.generate(f"Request {name}:", params, name):
                outputs = [completion.text for completion in output.outputs]
                if is_aborted:
                    break
            return outputs

        def params(structured: StructuredOutputsParams | None, seed: int, **fields: Any) -> SamplingParams:
            fields = {"output_kind": RequestOutputKind.FINAL_ONLY, "max_tokens": 40, "temperature": 0.9, **fields}
            return SamplingParams(structured_outputs=structured, seed=seed, **fields)

        plain = params(None, 5, ignore_eos=True)
        try:
            alone = await final("plain", plain)
            for round_ in range(6):
                results = await asyncio.gather(
                    final("plain", plain),
                    *(final(f"s{i}", params(wish(json=schema), round_)) for i, schema in enumerate(schemas)),
                    final("regex", params(wish(regex="[a-f]{4,8}"), round_)),
                    final("choice", params(wish(choice=["red", "blue"]), round_)),
                    final("two", params(wish(json=schemas[0]), round_, n=2)),
                    final(
                        "gone",
                        params(wish(json=schemas[1]), round_, output_kind=RequestOutputKind.DELTA),
                        is_aborted=True,
                    ),
                )
                assert results[0] == alone
                for texts_, schema in zip(results[1:4], schemas, strict=True):
                    jsonschema.validate(json.loads(texts_[0]), schema)
                assert re.fullmatch("[a-f]{4,8}", results[4][0])
                assert results[5][0] in ("red", "blue")
                assert len(results[6]) == 2
                for text in results[6]:
                    jsonschema.validate(json.loads(text), schemas[0])
        finally:
            engine.shutdown()

    asyncio.run(run())


@pytest.mark.native_ops
@pytest.mark.parametrize(
    "bomb",
    [
        wish(regex="(a+)+b"),
        wish(regex="(x{1,1000}){1,1000}"),
        wish(regex="(a|aa)*{5000}"),
        wish(regex="x" * 60_000),
        wish(grammar='start: a\na: a a | "x" | ""'),
        wish(grammar="root ::= " + '("a" | "b")*' * 4000),
    ],
)
def test_b078_bombs_end_or_are_refused_and_others_go_on(llm: LLM, bomb: StructuredOutputsParams):
    plain = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    alone = llm.generate(["One two three"], plain, use_tqdm=False)[0].outputs[0].token_ids
    bombs = [SamplingParams(structured_outputs=bomb, temperature=1, seed=i, max_tokens=30) for i in range(2)]
    try:
        outputs = llm.generate(["One two three", "x", "y"], [plain, *bombs], use_tqdm=False)
    except InvalidRequestError as error:
        assert "structured_outputs" in str(error)
    else:
        assert outputs[0].outputs[0].token_ids == alone
    assert llm.generate(["One two three"], plain, use_tqdm=False)[0].outputs[0].token_ids == alone


def test_b078_deep_and_huge_constraints_are_refused():
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"items": schema}
    for fields in ({"json": schema}, {"regex": "a" * 2**20}, {"grammar": "a" * 2**21}, {"json": " " * 2**21}):
        with pytest.raises(InvalidRequestError):
            wish(**fields)
