"""Request fields that shape the text: stops, biases, lengths, defaults of the model, the prefix cache."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.server.conftest import Engine, Server

GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


def text_of(server: Server, path: str, stream: bool, **fields) -> tuple[str, str, object]:
    """Return text, finish reason and stop reason of a greedy answer to the same prompt on one of the four paths."""
    if path == "completions":
        reply = server.complete(prompt="import os\n", stream=stream, **GREEDY, **fields)
    else:
        reply = server.chat("import os", stream=stream, **GREEDY, **fields)
    if not stream:
        (choice,) = reply.json["choices"]
        text = choice["text"] if path == "completions" else choice["message"]["content"]
        return text, choice["finish_reason"], choice["stop_reason"]
    choices = [choice for event in reply.events for choice in event["choices"]]
    pieces = [choice["text"] if path == "completions" else choice["delta"].get("content") or "" for choice in choices]
    stop = fields.get("stop")
    if stop and not fields.get("include_stop_str_in_output"):
        so_far = ""
        for piece in pieces:
            so_far += piece
            assert stop not in so_far
    return "".join(pieces), choices[-1]["finish_reason"], choices[-1]["stop_reason"]


@pytest.mark.parametrize("path", ["completions", "chat"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_and_is_not_in_it(tiny: Server, path: str, stream: bool):
    base, _, _ = text_of(tiny, path, False)
    assert len(base) > 12
    for stop in (base[5:6], base[4:9]):
        cut = base[: base.find(stop)]
        assert text_of(tiny, path, stream, stop=stop) == (cut, "stop", stop)
        kept = text_of(tiny, path, stream, stop=stop, include_stop_str_in_output=True)
        assert kept == (cut + stop, "stop", stop)


def test_a_stop_token_ends_the_text_and_its_id_is_told(tiny: Server):
    base = tiny.complete(prompt="abc", return_token_ids=True, **GREEDY).json["choices"][0]
    stop_id = base["token_ids"][6]
    number = base["token_ids"].index(stop_id)
    hidden, shown = (
        tiny.complete(
            prompt="abc", stop_token_ids=[stop_id], include_stop_str_in_output=kept, return_token_ids=True, **GREEDY
        ).json["choices"][0]
        for kept in (False, True)
    )
    assert hidden["token_ids"] == shown["token_ids"] == base["token_ids"][: number + 1]
    assert hidden["stop_reason"] == shown["stop_reason"] == stop_id
    assert shown["text"] == hidden["text"] + tiny.post("/detokenize", tokens=[stop_id]).json["prompt"]


def test_more_stop_strings_than_four_need_a_switch(tiny: Server, tiny_engine: Engine):
    stops = [f"stop{number}" for number in range(5)]
    refused = tiny.complete(prompt="abc", stop=stops)
    assert (refused.status, refused.error["param"]) == (400, "stop") and "max-stop-strings" in refused.error["message"]
    assert tiny.complete(prompt="abc", stop=stops[:4]).status == 200
    assert tiny_engine.serve(max_stop_strings=5).complete(prompt="abc", stop=stops).status == 200


@pytest.mark.parametrize(
    "bias",
    [{"325": 5}, {"-1": 1}, {"abc": 1}, {"5": 1e9}, {"5": -101}, {"9" * 400: 1}, {"5": "x"}, {"5": None}, [5], {"": 1}],
)
def test_biases_out_of_range_are_refused(tiny: Server, bias):
    reply = tiny.complete(prompt="abc", logit_bias=bias)
    assert (reply.status, reply.error["param"]) == (400, "logit_bias")
    assert tiny.complete(prompt="abc", logit_bias={"5": 100}, **GREEDY).json["choices"][0]["text"]


def test_biases_that_are_no_number_are_refused(tiny: Server):
    for value in ("NaN", "Infinity", "-Infinity", "1e999"):
        body = f'{{"prompt": "abc", "logit_bias": {{"5": {value}}}}}'.encode()
        reply = tiny.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        assert reply.status == 400 and reply.error


# -- lengths -----------------------------------------------------------------------------------------------------------


def test_a_prompt_as_long_as_the_context_is_refused_and_one_shorter_gets_one_token(tiny: Server):
    fits = tiny.complete(prompt=[70] * 511, max_tokens=10, ignore_eos=True).json
    refused = tiny.complete(prompt=[70] * 512)
    assert fits["usage"]["completion_tokens"] == 1 and fits["choices"][0]["finish_reason"] == "length"
    assert refused.status == 400
    assert "512" in refused.error["message"] and "max_model_len" in refused.error["message"]


def test_more_tokens_than_there_is_room_for_are_cut_never_the_prompt(tiny: Server):
    answer = tiny.complete(prompt=[70] * 500, max_tokens=2045, ignore_eos=True).json
    assert answer["usage"]["prompt_tokens"] == 500 and answer["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}])
def test_a_minimum_that_cannot_be_reached_is_refused(tiny: Server, fields: dict):
    for post in (tiny.complete, tiny.chat):
        key = {"prompt": "abc"} if post == tiny.complete else {}
        reply = post(min_tokens=10**6, **key, **fields)
        assert (reply.status, reply.error["param"]) == (400, "min_tokens")
    named = tiny.chat("abc", min_tokens=10**6).error["message"]
    assert "512" in named and "1000000" in named
    assert tiny.complete(prompt="abc", **GREEDY).status == 200


def test_a_minimum_keeps_the_end_away(tiny: Server):
    answer = tiny.complete(prompt="abc", min_tokens=8, max_tokens=20, logit_bias={"0": 100}, temperature=0).json
    assert answer["usage"]["completion_tokens"] == 9 and answer["choices"][0]["finish_reason"] == "stop"


def test_a_prompt_is_shortened_only_when_asked_for(tiny: Server):
    answer = tiny.complete(prompt=[70] * 20, truncate_prompt_tokens=5, return_token_ids=True, max_tokens=1).json
    assert answer["choices"][0]["prompt_token_ids"] == [70] * 5


# -- the prefix cache --------------------------------------------------------------------------------------------------


def test_cached_prompt_tokens_are_told(tiny: Server):
    def cached(ids: list[int], **fields) -> int:
        usage = tiny.complete(prompt=ids, max_tokens=1, **fields).json["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    for length, expected in ((32, 16), (33, 32)):  # the last token must be computed
        ids = [90 + length + number for number in range(length)]
        assert [cached(ids), cached(ids)] == [0, expected]
        assert cached(ids, cache_salt=f"mine{length}") == 0


def test_details_can_be_left_out(tiny_engine: Engine):
    usage = tiny_engine.serve(enable_prompt_tokens_details=False).complete(prompt="abc").json["usage"]
    assert "prompt_tokens_details" not in usage


def test_the_prefix_cache_can_be_reset(tiny: Server):
    ids = list(range(200, 248))
    tiny.complete(prompt=ids, max_tokens=1)
    assert tiny.post("/reset_prefix_cache").json == {"success": True}
    usage = tiny.complete(prompt=ids, max_tokens=1).json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


# -- defaults of the model ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow_engine(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """The tiny model with a generation config that makes sampling greedy in all but name, and short."""
    folder = tmp_path_factory.mktemp("models") / "narrow"
    shutil.copytree(tiny_folder, folder)
    defaults = {"temperature": 0.1, "top_k": 1, "repetition_penalty": 1.05, "max_new_tokens": 40}
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    engine = Engine(model=str(folder), served_model_name="narrow", num_gpu_blocks_override=128)
    yield engine
    engine.close()


def test_the_models_defaults_apply_unless_a_request_says_otherwise(narrow_engine: Engine):
    server = narrow_engine.serve()

    def texts(**fields) -> set[str]:
        return {
            server.complete(prompt="abc", seed=seed, ignore_eos=True, max_tokens=8, **fields).json["choices"][0]["text"]
            for seed in range(4)
        }

    assert len(texts()) == 1  # top_k = 1 of the model
    assert len(texts(temperature=2)) == 1  # top_k is still the model's
    assert len(texts(temperature=2, top_k=-1)) == 4


def test_the_models_longest_answer_is_a_default_and_the_operators_a_limit(narrow_engine: Engine, tiny_folder: Path):
    """Explicit wishes were cut to what the model's file says, silently."""
    server = narrow_engine.serve()
    for fields, given in (({}, 40), ({"max_tokens": 100}, 100), ({"max_tokens": 7}, 7)):
        assert server.chat("Hi", ignore_eos=True, **fields).json["usage"]["completion_tokens"] == given
    wish = {"override_generation_config": {"max_new_tokens": 9}}
    engine = Engine(model=str(tiny_folder), num_gpu_blocks_override=128, **wish)
    server = engine.serve()
    for fields, given in (({}, 9), ({"max_tokens": 100}, 9), ({"max_tokens": 7}, 7)):
        assert server.chat("Hi", ignore_eos=True, **fields).json["usage"]["completion_tokens"] == given
    engine.close()
