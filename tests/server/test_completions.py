"""/v1/completions on a tiny random model: prompts, choices, echo, logprobs, usage, streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from octavo.entrypoints.openai.generation import PromptOutput, with_prompt_logprobs
from octavo.types.outputs import CompletionOutput, RequestOutput
from tests.server.conftest import Server

GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def joined_text(events: list[dict], index: int = 0) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"] if choice["index"] == index)


def test_a_text_is_continued_and_counted(tiny: Server):
    answer = tiny.complete(prompt="def test", **GREEDY).json
    tokens = tiny.post("/tokenize", prompt="def test").json["tokens"]
    (choice,) = answer["choices"]
    assert answer["object"] == "text_completion" and answer["model"] == "tiny" and answer["id"].startswith("cmpl-")
    assert choice["finish_reason"] == "length" and choice["text"]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(tokens), 8)
    assert usage["total_tokens"] == len(tokens) + 8


def test_sixteen_tokens_are_generated_unless_asked_otherwise(tiny: Server):
    for fields in ({}, {"max_tokens": None}):
        answer = tiny.complete(prompt="abc", temperature=0, ignore_eos=True, **fields).json
        assert answer["usage"]["completion_tokens"] == 16


def test_choices_are_ordered_by_prompt_then_by_n(tiny: Server):
    prompts = ["import", "return the", "x"]
    answer = tiny.complete(prompt=prompts, n=2, seed=1, temperature=1, max_tokens=6, ignore_eos=True).json
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    for number, prompt in enumerate(prompts):
        alone = tiny.complete(prompt=prompt, n=2, seed=1, temperature=1, max_tokens=6, ignore_eos=True).json
        assert [c["text"] for c in alone["choices"]] == [c["text"] for c in answer["choices"][2 * number :][:2]]
    assert answer["usage"]["completion_tokens"] == 36
    lengths = [len(tiny.post("/tokenize", prompt=prompt).json["tokens"]) for prompt in prompts]
    assert answer["usage"]["prompt_tokens"] == sum(lengths)


def test_token_ids_and_lists_of_them_are_prompts(tiny: Server):
    ids = [tiny.post("/tokenize", prompt=text).json["tokens"] for text in ("import", "return the")]
    texts = tiny.complete(prompt=["import", "return the"], **GREEDY).json
    one = tiny.complete(prompt=ids[0], **GREEDY).json
    both = tiny.complete(prompt=ids, **GREEDY).json
    assert [c["text"] for c in both["choices"]] == [c["text"] for c in texts["choices"]]
    assert one["choices"][0]["text"] == texts["choices"][0]["text"]


def test_a_stream_says_what_the_whole_answer_says(tiny: Server):
    prompts = ["import", "return"]
    fields = dict(prompt=prompts, n=2, seed=3, temperature=1, max_tokens=12, ignore_eos=True, logprobs=2, echo=True)
    whole = tiny.complete(**fields).json
    events = tiny.complete(**fields, stream=True, stream_options={"include_usage": True}).events
    for choice in whole["choices"]:
        index = choice["index"]
        assert joined_text(events, index) == choice["text"]
        pieces = [c for event in events for c in event["choices"] if c["index"] == index]
        assert [piece["finish_reason"] for piece in pieces][-1] == choice["finish_reason"]
        assert all(piece["finish_reason"] is None for piece in pieces[:-1])
        for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            assert [v for p in pieces if p["logprobs"] for v in p["logprobs"][name]] == choice["logprobs"][name]
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert events[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_every_sequence_is_given_its_prompts_logprobs_whichever_brings_them():
    async def outputs():
        for prompt, sequence, logprobs in (
            (0, 1, None),
            (1, 0, [None, {}]),
            (0, 0, [None]),
            (0, 1, None),
            (2, 0, None),
        ):
            completion = CompletionOutput(sequence, "", [])
            yield PromptOutput(prompt, RequestOutput("r", None, [1], logprobs, [completion], False))

    async def collected():
        return [
            (item.prompt_index, item.output.outputs[0].index, item.output.prompt_logprobs)
            async for item in with_prompt_logprobs(outputs())
        ]

    assert asyncio.run(collected()) == [
        (1, 0, [None, {}]), (0, 1, [None]), (0, 0, [None]), (0, 1, [None]), (2, 0, None)
    ]  # fmt: skip


def test_every_event_has_the_fingerprint_of_the_whole_answer(tiny: Server):
    for ask in (tiny.complete, tiny.chat):
        fields = {"prompt": "abc"} if ask == tiny.complete else {}
        fingerprint = ask(max_tokens=2, **fields).json["system_fingerprint"]
        assert {one["system_fingerprint"] for one in ask(max_tokens=2, stream=True, **fields).events} == {fingerprint}


def test_usage_comes_once_at_the_end_of_a_stream_when_asked_for(tiny: Server):
    fields = dict(prompt="abc", stream=True, **GREEDY)
    events = tiny.complete(**fields, stream_options={"include_usage": True}).events
    assert [event["usage"] is not None for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["choices"] == []
    assert all("usage" not in event for event in tiny.complete(**fields).events)


def test_continuous_usage_grows_and_its_prompt_count_stays(real: Server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    prompt = list(range(1000, 1900))
    fields = {**GREEDY, "max_tokens": 40}
    events = real.complete(prompt=prompt, stream=True, stream_options=options, **fields).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert {event["usage"]["prompt_tokens"] for event in events} == {900}
    assert counts == sorted(counts) and counts[-1] == 40 and counts[0] < 40


def test_stream_options_need_a_stream(tiny: Server):
    reply = tiny.complete(prompt="abc", stream_options={"include_usage": True})
    assert (reply.status, reply.error["param"]) == (400, "stream_options")


# -- echo --------------------------------------------------------------------------------------------------------------


def test_echo_repeats_the_prompt_as_text_or_decoded(tiny: Server):
    plain = tiny.complete(prompt="def test_", **GREEDY).json["choices"][0]["text"]
    ids = tiny.post("/tokenize", prompt="def test_").json["tokens"]
    for prompt in ("def test_", ids):
        echoed = tiny.complete(prompt=prompt, echo=True, **GREEDY).json["choices"][0]["text"]
        assert echoed == "def test_" + plain


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_no_new_tokens_returns_the_prompt_and_counts_none(tiny: Server, stream: bool):
    reply = tiny.complete(
        prompt="def test_",
        echo=True,
        max_tokens=0,
        stream=stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    )
    if stream:
        text, usage = joined_text(reply.events), reply.events[-1]["usage"]
        reason = [c["finish_reason"] for event in reply.events for c in event["choices"]][-1]
    else:
        (choice,) = reply.json["choices"]
        text, usage, reason = choice["text"], reply.json["usage"], choice["finish_reason"]
    assert (text, usage["completion_tokens"], reason) == ("def test_", 0, "length")


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echoed_tokens_join_to_the_text_and_have_logprobs(tiny: Server, max_tokens: int):
    """What evaluation harnesses send to score a prompt."""
    for prompt in ("\n1. Carol\n2. ", "naïve 日本 🙂 x", tiny.post("/tokenize", prompt="def f(x):").json["tokens"]):
        answer = tiny.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=max_tokens, logit_bias={"70": 100}).json
        choice, logprobs = answer["choices"][0], answer["choices"][0]["logprobs"]
        num_tokens = answer["usage"]["prompt_tokens"] + max_tokens
        assert {len(values) for values in logprobs.values()} == {num_tokens}
        assert "".join(logprobs["tokens"]) == choice["text"]
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
        offsets = [0]
        for token in logprobs["tokens"]:
            offsets.append(offsets[-1] + len(token))
        assert logprobs["text_offset"] == offsets[:-1]
        assert all(
            token in top for token, top in zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:], strict=True)
        )


@pytest.mark.parametrize("as_ids", [False, True])
def test_offsets_are_places_in_the_text_whatever_tokens_are_called(tiny: Server, as_ids: bool):
    """Special tokens that the text leaves out, and names such as token_id:7, moved what came after them."""
    shape = dict(max_tokens=6, temperature=1, seed=4, allowed_token_ids=[1, 2, 68, 300], ignore_eos=True, logprobs=0)
    choice = tiny.complete(
        prompt="<|im_start|>ab", **shape, echo=True, return_token_ids=True, return_tokens_as_token_ids=as_ids
    ).json["choices"][0]
    expected, place, ids = [], 0, choice["prompt_token_ids"] + choice["token_ids"]
    for number, token_id in enumerate(ids):
        expected.append(place)
        is_hidden = token_id in (1, 2) and number >= len(choice["prompt_token_ids"])
        place += 0 if is_hidden else len(tiny.post("/detokenize", tokens=[token_id]).json["prompt"])
    assert choice["logprobs"]["text_offset"] == expected and place == len(choice["text"])
    assert set(choice["token_ids"]) & {1, 2} and set(choice["token_ids"]) - {1, 2}


def test_a_scored_prompt_is_scored_the_same_again(tiny: Server):
    """Prompt logprobs do not come from the prefix cache, and do not differ because of it."""
    prompt = list(range(40, 73))
    first, second = (tiny.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=0).json for _ in range(2))
    assert first["choices"][0]["logprobs"] == second["choices"][0]["logprobs"]


def test_no_new_tokens_without_echo_are_refused(tiny: Server):
    reply = tiny.complete(prompt="abc", max_tokens=0)
    assert (reply.status, reply.error["param"]) == (400, "max_tokens")


# -- further fields ----------------------------------------------------------------------------------------------------


def test_prompt_logprobs_and_token_ids_are_returned(tiny: Server):
    answer = tiny.complete(prompt=[65, 66, 67], prompt_logprobs=2, return_token_ids=True, **GREEDY).json
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == [65, 66, 67] and len(choice["token_ids"]) == 8
    first, *others = choice["prompt_logprobs"]
    assert first is None and len(others) == 2
    assert set(others[0]["66"]) == {"logprob", "rank", "decoded_token"} and 2 <= len(others[0]) <= 3


def test_streamed_token_ids_join_to_those_of_the_whole_answer(tiny: Server):
    fields = dict(prompt="abc", return_token_ids=True, **GREEDY)
    (whole,) = tiny.complete(**fields).json["choices"]
    pieces = [c for event in tiny.complete(**fields, stream=True).events for c in event["choices"]]
    assert [i for piece in pieces for i in piece["token_ids"]] == whole["token_ids"]
    assert pieces[0]["prompt_token_ids"] == whole["prompt_token_ids"]


def test_tokens_are_named_by_id_when_asked_for(tiny: Server):
    answer = tiny.complete(prompt="abc", logprobs=1, return_tokens_as_token_ids=True, return_token_ids=True, **GREEDY)
    (choice,) = answer.json["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]


def test_the_best_of_several_is_not_built_unless_all_are_wanted(tiny: Server):
    accepted = tiny.complete(prompt="abc", n=2, best_of=2, stream=True, max_tokens=2)
    refused = tiny.complete(prompt="abc", n=1, best_of=2)
    assert accepted.status == 200
    assert (refused.status, refused.error["param"]) == (400, "best_of") and "best_of" in refused.error["message"]


def test_logprobs_do_not_depend_on_sampling_parameters(tiny: Server):
    shown = [
        tiny.complete(prompt="abc", logprobs=3, max_tokens=1, seed=1, return_tokens_as_token_ids=True, **fields).json[
            "choices"
        ][0]["logprobs"]
        for fields in ({"temperature": 0}, {"temperature": 1}, {"temperature": 2}, {"top_p": 0.1}, {"top_k": 1})
    ]
    tops = [dict(sorted(one["top_logprobs"][0].items(), key=lambda item: -item[1])[:3]) for one in shown]
    assert all(top == tops[0] for top in tops)


def test_logprobs_may_be_asked_for_as_chats_do(tiny: Server):
    """Clients of both endpoints send true and false to both."""
    asked = {"prompt": "abc", "max_tokens": 2, "temperature": 0}
    choices = [tiny.complete(**asked, logprobs=wish).json["choices"][0] for wish in (True, 1, False)]
    assert choices[0] == choices[1] and len(choices[0]["logprobs"]["tokens"]) == 2
    assert choices[2]["logprobs"] is None
    streamed = tiny.complete(**asked, logprobs=True, stream=True).events
    tokens = [token for one in streamed for token in one["choices"][0]["logprobs"]["tokens"]]
    assert tokens == choices[0]["logprobs"]["tokens"]


def test_chosen_ids_get_logprobs(tiny: Server):
    answer = tiny.complete(prompt="abc", logprob_token_ids=[70, 71], return_tokens_as_token_ids=True, **GREEDY).json
    for top in answer["choices"][0]["logprobs"]["top_logprobs"]:
        assert {"token_id:70", "token_id:71"} <= set(top)


def test_seeds_make_answers_repeatable(tiny: Server):
    answers = [
        [c["text"] for c in tiny.complete(prompt="abc", n=4, seed=seed, max_tokens=12).json["choices"]]
        for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]
    assert len(set(answers[0])) == 4


def test_scores_of_a_prompt_are_the_models(tiny: Server, tiny_folder: Path):
    """What a harness gets for a text is the log-softmax of the model's logits, as Transformers computes them."""
    import torch
    from transformers import AutoModelForCausalLM

    ids = [70, 81, 92, 103, 114, 125]
    answer = tiny.complete(prompt=ids, echo=True, logprobs=1, max_tokens=1, temperature=0, return_token_ids=True).json
    (choice,) = answer["choices"]
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    sequence = [*ids, *choice["token_ids"]]
    with torch.no_grad():
        expected = model(torch.tensor([sequence])).logits[0].log_softmax(-1)
    scores = choice["logprobs"]["token_logprobs"]
    assert len(scores) == len(ids) + 1 and scores[0] is None
    for position, score in enumerate(scores[1:], start=1):
        assert abs(score - float(expected[position - 1, sequence[position]])) < 1e-4
