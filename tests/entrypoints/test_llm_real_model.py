"""Reported faults of other engines, on SmolLM2-135M-Instruct: stops, ends, logprobs, caches, defaults."""

from __future__ import annotations

import math

import pytest

from octavo import LLM, RequestOutputKind, SamplingParams

pytestmark = pytest.mark.model

ALPHABET = "Here is the English alphabet: ABC"
NASTY = ["Write three emoji:", "Napiš větu česky:", "日本語で一文:", "Say hello in Thai: สวัสดี"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m-instruct", max_model_len=1024, kv_cache_memory_bytes=2**27, max_logprobs=-1)


def one(llm: LLM, prompt, **params):
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 24, **params})
    return llm.generate(prompt, params, use_tqdm=False)[0]


def stream_text(llm: LLM, prompt, **params) -> list[str]:
    options = {"temperature": 0.0, "max_tokens": 24, "output_kind": RequestOutputKind.DELTA, **params}
    llm.llm_engine.add_request("stream", prompt, SamplingParams(**options))
    deltas = []
    while llm.llm_engine.has_unfinished_requests():
        deltas += [output.outputs[0].text for output in llm.llm_engine.step()]
    return deltas


def test_a_stop_string_inside_a_token_ends_the_text_before_it(llm):
    """vllm#3572: only a stop string at the end of a token's text was seen."""
    base = one(llm, ALPHABET).outputs[0]
    tokenizer = llm.get_tokenizer()
    token_text = next(t for i in base.token_ids if len(t := tokenizer.decode([i])) >= 3 and t[1:2].strip())
    stop = token_text[1:2]
    completion = one(llm, ALPHABET, stop=[stop]).outputs[0]
    assert completion.text == base.text[: base.text.find(stop)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


@pytest.mark.parametrize("include", [False, True])
def test_a_streamed_stop_string_never_shows_in_part(llm, include):
    """vllm#3574, #57052: parts of a stop string of several tokens had already been sent."""
    base = one(llm, ALPHABET, max_tokens=32).outputs[0].text
    stop = base[12:24]
    options = {"stop": [stop], "max_tokens": 32, "include_stop_str_in_output": include}
    whole = one(llm, ALPHABET, **options).outputs[0]
    deltas = stream_text(llm, ALPHABET, **options)
    assert "".join(deltas) == whole.text == base[: base.find(stop) + (len(stop) if include else 0)]
    assert whole.stop_reason == stop


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_tokens_text_is_exactly_the_difference(llm, include):
    base = one(llm, ALPHABET).outputs[0]
    position = next(p for p in range(3, 24) if base.token_ids[p] not in base.token_ids[:p])
    stop_id = base.token_ids[position]
    completion = one(llm, ALPHABET, stop_token_ids=[stop_id], include_stop_str_in_output=include).outputs[0]
    assert completion.token_ids == base.token_ids[: position + 1]
    shown = completion.token_ids if include else completion.token_ids[:-1]
    assert base.text.startswith(completion.text)
    assert completion.text == llm.get_tokenizer().decode(shown)
    assert completion.stop_reason == stop_id


def test_min_tokens_masks_every_end(llm):
    """vllm#32163: a request with no stop ids of its own ended before min_tokens."""
    eos = llm.model_config.eos_token_ids[0]
    completion = one(llm, ALPHABET, min_tokens=8, logit_bias={eos: 100.0}).outputs[0]
    assert (len(completion.token_ids), completion.token_ids[-1], completion.finish_reason) == (9, eos, "stop")


def test_ignore_eos_runs_on_and_own_stop_ids_still_stop(llm):
    bias = dict.fromkeys(llm.model_config.eos_token_ids[:1], 100.0)
    eos = next(iter(bias))
    running = one(llm, ALPHABET, ignore_eos=True, logit_bias=bias, max_tokens=16).outputs[0]
    assert (len(running.token_ids), running.finish_reason) == (16, "length")
    stopped = one(llm, ALPHABET, ignore_eos=True, logit_bias=bias, stop_token_ids=[eos]).outputs[0]
    assert (len(stopped.token_ids), stopped.stop_reason) == (1, eos)


def test_any_bytes_decode_without_an_error(llm):
    """vllm#17448: bytes that are no characters ended the whole batch with an exception."""
    tokenizer = llm.get_tokenizer()
    byte_tokens = [i for i in range(600) if len(data := tokenizer.token_bytes(i)) == 1 and data[0] >= 0x80]
    assert len(byte_tokens) > 60
    params = [
        SamplingParams(temperature=2.0, seed=seed, max_tokens=24, allowed_token_ids=byte_tokens, ignore_eos=True)
        for seed in range(16)
    ]
    completions = [output.outputs[0] for output in llm.generate(["bytes:"] * 16, params, use_tqdm=False)]
    assert [c.text for c in completions] == [tokenizer.decode(c.token_ids) for c in completions]
    assert any("\ufffd" in c.text for c in completions)
    streamed = stream_text(
        llm,
        "bytes:",
        **{f: getattr(params[0], f) for f in ("temperature", "seed", "max_tokens")},
        allowed_token_ids=byte_tokens,
        ignore_eos=True,
    )
    alone = llm.generate("bytes:", params[0], use_tqdm=False)[0].outputs[0]
    assert "".join(streamed) == alone.text


@pytest.mark.parametrize("prompt", NASTY)
def test_characters_of_several_tokens_are_whole_in_streams_and_logprobs(llm, prompt):
    """vllm#19177, ollama#13497: raw alphabets or U+FFFD in place of a character's bytes."""
    output = one(llm, prompt, logprobs=3, max_tokens=32, temperature=1.0, seed=3)
    completion = output.outputs[0]
    tokenizer = llm.get_tokenizer()
    assert completion.text == tokenizer.decode(completion.token_ids, skip_special_tokens=True)
    shown = [
        position[token_id].decoded_token
        for position, token_id in zip(completion.logprobs, completion.token_ids, strict=True)
        if token_id not in tokenizer.all_special_ids
    ]
    assert completion.text.startswith("".join(shown))
    assert completion.text[len("".join(shown)) :] in ("", "\ufffd")
    deltas = stream_text(llm, prompt, max_tokens=32, temperature=1.0, seed=3)
    assert "".join(deltas) == completion.text


def test_logprobs_have_the_sampled_token_its_rank_and_a_true_sum(llm):
    completion = one(llm, ALPHABET, logprobs=4, temperature=1.0, seed=0).outputs[0]
    assert len(completion.logprobs) == len(completion.token_ids)
    for position, token_id in zip(completion.logprobs, completion.token_ids, strict=True):
        assert len(position) in (4, 5)
        ranked = sorted(position.items(), key=lambda item: item[1].rank)
        assert [candidate.logprob for _, candidate in ranked] == sorted((c.logprob for _, c in ranked), reverse=True)
        assert next(iter(position)) == token_id
    total = sum(p[t].logprob for p, t in zip(completion.logprobs, completion.token_ids, strict=True))
    assert completion.cumulative_logprob == pytest.approx(total)


@pytest.mark.parametrize("count, length", [(0, 1), (-1, None)])
def test_no_and_all_logprobs(llm, count, length):
    position = one(llm, ALPHABET, logprobs=count, max_tokens=1).outputs[0].logprobs[0]
    assert len(position) == (length or llm.model_config.vocab_size)
    if count == -1:
        assert sum(math.exp(candidate.logprob) for candidate in position.values()) == pytest.approx(1, abs=1e-3)


def test_logprobs_are_raw_whatever_the_sampling_is(llm):
    first = [
        one(llm, ALPHABET, logprobs=3, max_tokens=1, seed=0, **params).outputs[0].logprobs[0]
        for params in ({}, {"temperature": 1.0}, {"temperature": 2.0}, {"temperature": 1.0, "top_p": 0.1})
    ]
    top = [{i: c.logprob for i, c in position.items() if c.rank <= 3} for position in first]
    assert top == [top[0]] * 4


def test_prompt_logprobs_are_the_same_with_a_warm_cache(llm):
    """vllm#8268: with prefix caching the second answer had too few positions, or killed the engine."""
    prompt = list(range(1000, 1033))
    llm.reset_prefix_cache()
    first, second = (one(llm, prompt, prompt_logprobs=1, max_tokens=2) for _ in range(2))
    assert len(first.prompt_logprobs) == 33 and first.prompt_logprobs[0] is None
    assert first.prompt_logprobs == second.prompt_logprobs
    assert all(prompt[i] in first.prompt_logprobs[i] for i in range(1, 33))


@pytest.mark.parametrize("length, cached", [(32, 16), (33, 32)])
def test_a_repeated_prompt_reports_its_full_blocks_but_the_last_token(llm, length, cached):
    prompt = list(range(2000, 2000 + length))
    llm.reset_prefix_cache()
    outputs = [one(llm, prompt) for _ in range(2)]
    assert [output.num_cached_tokens for output in outputs] == [0, cached]
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids


@pytest.mark.parametrize("length", [15, 16, 17, 31, 47, 48])
def test_greedy_output_is_the_same_cold_and_warm(llm, length):
    prompt = [(7 * i) % 4000 + 100 for i in range(length)]
    llm.reset_prefix_cache()
    cold, warm = (one(llm, prompt, logprobs=1).outputs[0] for _ in range(2))
    assert cold == warm


def test_n_samples_are_complete_distinct_and_repeatable(llm):
    first, again = (one(llm, ALPHABET, n=4, temperature=1.0, seed=1) for _ in range(2))
    assert [c.index for c in first.outputs] == [0, 1, 2, 3]
    assert len({c.text for c in first.outputs}) == 4
    assert [c.token_ids for c in first.outputs] == [c.token_ids for c in again.outputs]


def test_top_k_1_equals_greedy(llm):
    prompts = [f"{ALPHABET} {i}" for i in range(10)]
    greedy = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12), use_tqdm=False)
    top_1 = llm.generate(prompts, SamplingParams(temperature=1.0, top_k=1, max_tokens=12), use_tqdm=False)
    assert [o.outputs[0].token_ids for o in top_1] == [o.outputs[0].token_ids for o in greedy]


def test_a_seeded_request_does_not_depend_on_its_neighbours(llm):
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=16, logprobs=2)
    alone = llm.generate(ALPHABET, params, use_tqdm=False)[0].outputs[0]
    crowd = [SamplingParams(temperature=1.0, seed=i, max_tokens=5 + i) for i in range(7)]
    outputs = llm.generate([f"{i} things:" for i in range(7)] + [ALPHABET], [*crowd, params], use_tqdm=False)
    assert outputs[-1].outputs[0] == alone


def test_a_chat_has_one_beginning_and_ends_by_itself(llm):
    output = llm.chat(
        [{"role": "user", "content": "Say hi"}], SamplingParams(temperature=0.0, max_tokens=60), use_tqdm=False
    )[0]
    tokenizer = llm.get_tokenizer()
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert output.prompt_token_ids[0] == start
    assert output.prompt_token_ids[1] != start
    completion = output.outputs[0]
    assert completion.finish_reason == "stop"
    assert "<|" not in completion.text


def test_beam_search_finds_something_at_least_as_likely_as_greedy(llm):
    from octavo import BeamSearchParams

    greedy = one(llm, ALPHABET, max_tokens=8, logprobs=0).outputs[0]
    (output,) = llm.beam_search(ALPHABET, BeamSearchParams(beam_width=3, max_tokens=8, length_penalty=0.0))
    assert len(output.sequences) == 3
    scores = [sequence.cum_logprob for sequence in output.sequences]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] >= greedy.cumulative_logprob - 1e-4
    assert output.sequences[0].text.startswith(ALPHABET)


def test_workers_and_the_model_can_be_reached(llm):
    assert llm.apply_model(lambda model: type(model).__name__) == [
        llm.collective_rpc("get_model")[0].__class__.__name__
    ]
    assert llm.collective_rpc(lambda worker, x: x * 2, args=(21,)) == [42]
