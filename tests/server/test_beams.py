"""use_beam_search over HTTP finds what LLM.beam_search finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM, BeamSearchParams
from tests.server.conftest import Server


def test_beams_are_those_of_the_python_api(tiny: Server, tiny_folder: Path):
    llm = LLM(str(tiny_folder), num_gpu_blocks_override=64, use_tqdm_on_load=False)
    ids = [tiny.post("/tokenize", prompt=text).json["tokens"] for text in ("import", "def")]
    expected = llm.beam_search([{"prompt_token_ids": one} for one in ids], BeamSearchParams(beam_width=3, max_tokens=6))
    answer = tiny.complete(
        prompt=ids, use_beam_search=True, n=3, max_tokens=6, return_token_ids=True, logprobs=1, temperature=0
    ).json
    found = [choice["token_ids"] for choice in answer["choices"]]
    assert found == [
        sequence.tokens[len(prompt) :] for prompt, one in zip(ids, expected, strict=True) for sequence in one.sequences
    ]
    for choice in answer["choices"]:
        assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])
        assert choice["text"] == tiny.post("/detokenize", tokens=choice["token_ids"]).json["prompt"]
    assert answer["usage"]["completion_tokens"] == sum(map(len, found))


def test_chats_can_be_searched_too(tiny: Server):
    answer = tiny.chat("Hi", use_beam_search=True, n=2, max_tokens=4).json
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["choices"][0]["message"]["content"] != answer["choices"][1]["message"]["content"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"stream": True}, "stream"),
        ({"stop": "x"}, "stop"),
        ({"n": 11}, "n"),
        ({"top_p": 0.5}, "top_p"),
        ({"thinking_token_budget": 3}, "thinking_token_budget"),
    ],
)
def test_what_a_search_cannot_do_is_refused(tiny: Server, fields: dict, name: str):
    reply = tiny.complete(prompt="abc", use_beam_search=True, max_tokens=2, **fields)
    assert (reply.status, reply.error["param"]) == (400, name)


def test_what_only_a_search_can_do_is_refused_without_one(tiny: Server):
    assert tiny.complete(prompt="abc", length_penalty=2).error["param"] == "length_penalty"
    shorter = tiny.complete(prompt="abc", use_beam_search=True, n=2, max_tokens=3, temperature=0, length_penalty=2)
    assert shorter.status == 200 and len(shorter.json["choices"]) == 2
