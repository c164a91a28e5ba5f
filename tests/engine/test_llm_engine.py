"""Requests through the whole engine on a fake executor: text, ends, streams, n > 1, ids, metrics."""

from __future__ import annotations

import itertools

import pytest

from octavo import RequestOutputKind, SamplingParams
from octavo.errors import InvalidRequestError
from tests.engine.fakes import EOS, EXTRA_EOS, TURN, fake_engine, mixes, says

GREEDY = {"temperature": 0.0, "max_tokens": 40}
ENDED = {"num_running": 0, "num_waiting": 0, "kv_cache_usage": 0.0}


def completion_of(engine, prompt: object = "hi", **params):
    return engine.complete(prompt, **{**GREEDY, **params}).outputs[0]


def assert_nothing_is_left(fake):
    stats = fake.scheduler.make_stats()
    assert {name: getattr(stats, name) for name in ENDED} == ENDED
    assert not fake.engine.has_unfinished_requests()


# -- ends --------------------------------------------------------------------------------------------------------------


def test_end_of_sequence_ends_with_stop_and_no_reason():
    completion = completion_of(fake_engine(says("hello")))
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("hello", "stop", None)
    assert completion.token_ids == [*b"hello", EOS]


def test_a_further_end_id_of_the_generation_config_is_the_reason():
    completion = completion_of(fake_engine(says("hello", then=EXTRA_EOS)))
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("hello", "stop", EXTRA_EOS)


@pytest.mark.parametrize("end", [EOS, EXTRA_EOS])
def test_ignore_eos_runs_to_the_length(end):
    completion = completion_of(fake_engine(says("x", then=end)), ignore_eos=True, max_tokens=20)
    assert (len(completion.token_ids), completion.finish_reason) == (20, "length")


def test_with_ignore_eos_the_users_own_stop_ids_still_stop():
    completion = completion_of(fake_engine(says("x", then=EXTRA_EOS)), ignore_eos=True, stop_token_ids=[EXTRA_EOS])
    assert (len(completion.token_ids), completion.finish_reason, completion.stop_reason) == (2, "stop", EXTRA_EOS)


@pytest.mark.parametrize("include, text", [(False, "ab"), (True, "ab!")])
def test_a_stop_tokens_text_is_shown_only_when_included_and_its_id_always(include, text):
    completion = completion_of(
        fake_engine(says("ab!cd")), stop_token_ids=[ord("!")], include_stop_str_in_output=include
    )
    assert completion.text == text
    assert completion.token_ids == [*b"ab!"]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", ord("!"))


@pytest.mark.parametrize("include, text", [(False, "one "), (True, "one two")])
def test_a_stop_string_ends_the_text_before_or_after_it(include, text):
    fake = fake_engine(says("one two three"))
    completion = completion_of(fake, stop=["two"], include_stop_str_in_output=include)
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (text, "stop", "two")
    assert completion.token_ids == [*b"one two"]
    assert_nothing_is_left(fake)


def test_length_ends_with_length():
    completion = completion_of(fake_engine(says("abcdefgh")), max_tokens=3)
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("abc", "length", None)


def test_a_stop_string_on_the_last_allowed_token_counts_as_stop():
    completion = completion_of(fake_engine(says("abc")), max_tokens=3, stop="c")
    assert (completion.text, completion.finish_reason) == ("ab", "stop")


def test_text_held_back_for_a_stop_string_comes_out_at_the_end():
    completion = completion_of(fake_engine(says("abST")), stop="STOP")
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("abST", "stop", None)


def test_min_tokens_delays_stop_strings():
    completion = completion_of(fake_engine(says("a.b.c.d.")), stop=".", min_tokens=3)
    assert completion.text == "a.b"


def test_the_context_ends_a_sequence_and_the_prompt_is_whole():
    fake = fake_engine(says("x" * 100), max_model_len=16)
    output = fake.complete([1] * 15, **{**GREEDY, "max_tokens": 500})
    assert (len(output.prompt_token_ids), len(output.outputs[0].token_ids)) == (15, 1)
    assert output.outputs[0].finish_reason == "length"


def test_special_tokens_are_skipped_or_shown():
    tokens = [*b"a", TURN, *b"b"]
    assert completion_of(fake_engine(says(tokens))).text == "ab"
    shown = completion_of(fake_engine(says(tokens)), skip_special_tokens=False)
    assert shown.text == "a<turn>b"


def test_repetition_ends_with_its_own_reason():
    detection = {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 4}
    completion = completion_of(fake_engine(says("abcxyxyxyxyz")), repetition_detection=detection)
    assert (completion.text, completion.finish_reason) == ("abcxyxyxyxy", "repetition")
    assert completion.stop_reason == "repetition_detected"


def test_without_detokenization_there_are_ids_only():
    completion = completion_of(fake_engine(says("hello")), detokenize=False, logprobs=1)
    assert (completion.text, completion.token_ids) == ("", [*b"hello", EOS])
    assert completion.logprobs[0][ord("h")].decoded_token is None


def test_without_a_tokenizer_ids_go_in_and_come_out():
    completion = completion_of(fake_engine(says("hello"), tokenizer=None), [1, 2])
    assert (completion.text, completion.token_ids) == ("", [*b"hello", EOS])


def test_a_failed_request_ends_with_error_and_its_neighbours_go_on():
    fake = fake_engine(says("hello"))
    fake.executor.failing = {"bad": "NaN logits"}
    for request_id in ("good", "bad", "fine"):
        fake.engine.add_request(request_id, "hi", SamplingParams(**GREEDY))
    outputs = fake.run()
    bad = outputs["bad"][-1].outputs[0]
    assert (bad.finish_reason, bad.stop_reason) == ("error", "NaN logits")
    assert [outputs[i][-1].outputs[0].text for i in ("good", "fine")] == ["hello", "hello"]
    assert_nothing_is_left(fake)


# -- streams -----------------------------------------------------------------------------------------------------------


def stream(kind: RequestOutputKind, text: str = "one two é three", **params):
    fake = fake_engine(says(text))
    fake.engine.add_request("r", "hi", SamplingParams(**{**GREEDY, **params}, output_kind=kind))
    return fake.run()["r"]


def test_deltas_join_to_the_final_output():
    params = {"stop": ["three"], "logprobs": 2, "prompt_logprobs": 1}
    deltas = stream(RequestOutputKind.DELTA, **params)
    final = stream(RequestOutputKind.FINAL_ONLY, **params)
    assert len(final) == 1
    expected = final[0].outputs[0]
    assert "".join(d.outputs[0].text for d in deltas) == expected.text == "one two é "
    assert [i for d in deltas for i in d.outputs[0].token_ids] == expected.token_ids
    assert [p for d in deltas for p in d.outputs[0].logprobs] == expected.logprobs
    assert deltas[-1].outputs[0].cumulative_logprob == expected.cumulative_logprob == -len(expected.token_ids)
    assert [d.finished for d in deltas] == [False] * (len(deltas) - 1) + [True]
    assert [d.outputs[0].finish_reason for d in deltas][-2:] == [None, "stop"]


def test_prompt_logprobs_are_told_once_in_deltas_and_always_otherwise():
    deltas = stream(RequestOutputKind.DELTA, prompt_logprobs=1)
    assert [d.prompt_logprobs is not None for d in deltas] == [True] + [False] * (len(deltas) - 1)
    whole = stream(RequestOutputKind.CUMULATIVE, prompt_logprobs=1)
    assert all(output.prompt_logprobs == deltas[0].prompt_logprobs for output in whole)
    assert [p if p is None else list(p) for p in deltas[0].prompt_logprobs] == [None, [ord("i"), 65]]


def test_cumulative_outputs_grow_and_earlier_ones_stay_as_they_were():
    outputs = stream(RequestOutputKind.CUMULATIVE, logprobs=1)
    texts = [output.outputs[0].text for output in outputs]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    counts = [len(output.outputs[0].token_ids) for output in outputs]
    assert counts == list(range(1, len(outputs) + 1))
    assert [len(output.outputs[0].logprobs) for output in outputs] == counts


def test_no_character_is_split():
    deltas = stream(RequestOutputKind.DELTA, "日本🙂!")
    assert [d.outputs[0].text for d in deltas if d.outputs[0].text] == ["日", "本", "🙂", "!"]


def test_stream_interval_sends_the_first_the_last_and_every_nth():
    deltas = stream(RequestOutputKind.DELTA, "abcdefg", stream_interval=3)
    assert [d.outputs[0].text for d in deltas] == ["a", "bcd", "efg", ""]


def test_final_only_gives_nothing_before_the_end():
    assert len(stream(RequestOutputKind.FINAL_ONLY)) == 1


# -- n > 1 -------------------------------------------------------------------------------------------------------------


def test_n_sequences_are_complete_distinct_and_repeatable():
    params = {"n": 4, "temperature": 1.0, "seed": 1, "max_tokens": 12, "output_kind": RequestOutputKind.FINAL_ONLY}
    fake = fake_engine(mixes)
    first, again = fake.complete("hi", **params), fake.complete("hi", **params)
    assert [completion.index for completion in first.outputs] == [0, 1, 2, 3]
    assert all(len(completion.token_ids) == 12 for completion in first.outputs)
    assert len({completion.text for completion in first.outputs}) == 4
    assert [c.text for c in again.outputs] == [c.text for c in first.outputs]
    assert_nothing_is_left(fake)


def test_child_i_equals_a_single_request_with_seed_plus_i():
    params = {"temperature": 1.0, "max_tokens": 12}
    many = fake_engine(mixes).complete("hi", n=3, seed=5, output_kind=RequestOutputKind.FINAL_ONLY, **params)
    for index in range(3):
        single = fake_engine(mixes).complete("hi", seed=5 + index, **params)
        assert single.outputs[0].text == many.outputs[index].text


def test_sequences_that_end_at_different_times_are_all_there():
    def ends_by_seed(prompt, output, seed):
        return EOS if len(output) == seed else ord("x")

    fake = fake_engine(ends_by_seed)
    params = {"n": 3, "temperature": 1.0, "seed": 2, "max_tokens": 20, "prompt_logprobs": 1, "logprobs": 1}
    output = fake.complete("hi", **params, output_kind=RequestOutputKind.FINAL_ONLY)
    assert [completion.text for completion in output.outputs] == ["xx", "xxx", "xxxx"]
    assert output.finished and output.prompt_logprobs is not None
    assert fake.engine.get_num_unfinished_requests() == 0


def test_sequences_share_the_prompts_blocks_even_if_prompt_logprobs_are_asked_for():
    """Every sequence computed the whole prompt: what the first needs for its logprobs was asked of all."""
    fake = fake_engine(mixes)
    params = {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 2, "prompt_logprobs": 1}
    fake.complete("a prompt of several blocks", **params, output_kind=RequestOutputKind.FINAL_ONLY)
    totals = {metric.name: metric for metric in fake.engine.get_metrics()}
    assert totals["vllm:prefix_cache_hits"].value == 2 * 24, "blocks of 4 tokens; the last of 26 is computed anew"
    explicit = {**params, "prompt_logprobs": None, "skip_reading_prefix_cache": True}
    fake.complete("a prompt of several blocks", **explicit, output_kind=RequestOutputKind.FINAL_ONLY)
    totals = {metric.name: metric for metric in fake.engine.get_metrics()}
    assert totals["vllm:prefix_cache_hits"].value == 2 * 24, "who asks for no reading gets none"


def test_streams_of_n_sequences_carry_their_index():
    fake = fake_engine(mixes)
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=6, output_kind=RequestOutputKind.DELTA)
    fake.engine.add_request("r", "hi", params)
    outputs = fake.run()["r"]
    joined = dict.fromkeys(range(3), "")
    for output in outputs:
        (completion,) = output.outputs
        joined[completion.index] += completion.text
    whole = fake_engine(mixes).complete(
        "hi", n=3, temperature=1.0, seed=5, max_tokens=6, output_kind=RequestOutputKind.FINAL_ONLY
    )
    assert joined == {completion.index: completion.text for completion in whole.outputs}
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]


def test_n_with_priorities_and_equal_arrival_works():
    """vllm#21519: comparing two children of one request crashed."""
    fake = fake_engine(mixes, policy="priority")
    params = SamplingParams(n=2, temperature=1.0, max_tokens=4, output_kind=RequestOutputKind.FINAL_ONLY)
    for request_id in "ab":
        fake.engine.add_request(request_id, "hi", params, priority=1, arrival_time=5.0)
    assert {i: len(outputs[-1].outputs) for i, outputs in fake.run().items()} == {"a": 2, "b": 2}


def test_n_larger_than_max_num_seqs_completes():
    params = {"n": 20, "temperature": 1.0, "max_tokens": 4, "output_kind": RequestOutputKind.FINAL_ONLY}
    output = fake_engine(mixes, max_num_seqs=3).complete("hi", **params)
    assert len(output.outputs) == 20


# -- ids, aborts, metrics ----------------------------------------------------------------------------------------------


def test_two_live_requests_may_share_an_id():
    fake = fake_engine(lambda prompt, output, seed: prompt[0] if len(output) < 3 else EOS)
    fake.engine.add_request("same", "a", SamplingParams(**GREEDY, output_kind=RequestOutputKind.FINAL_ONLY))
    fake.engine.add_request("same", "b", SamplingParams(**GREEDY, output_kind=RequestOutputKind.FINAL_ONLY))
    assert sorted(output.outputs[0].text for output in fake.run()["same"]) == ["aaa", "bbb"]
    assert fake.complete("c", **GREEDY).outputs[0].text == "ccc"


def test_an_aborted_request_gives_nothing_more_and_frees_its_blocks():
    fake = fake_engine(mixes)
    params = SamplingParams(n=2, temperature=1.0, max_tokens=40)
    fake.engine.add_request("a", "hi", params)
    fake.engine.add_request("b", "hi", SamplingParams(**GREEDY))
    fake.engine.step()
    fake.engine.abort_request(["a", "unknown"])
    outputs = fake.run()
    assert set(outputs) == {"b"}
    assert len(outputs["b"][-1].outputs[0].token_ids) == 40
    assert_nothing_is_left(fake)
    assert len(fake.executor.rows) == 1  # of "b", whose end the workers learn with the next step


def test_an_abort_of_the_last_request_leaves_nothing():
    fake = fake_engine(mixes)
    fake.engine.add_request("a", "hi", SamplingParams(**GREEDY))
    fake.engine.step()
    fake.engine.abort_request("a")
    assert_nothing_is_left(fake)
    assert completion_of(fake).finish_reason == "length"


def metrics_of(fake) -> dict[str, object]:
    values = {}
    for metric in fake.engine.get_metrics():
        reason = metric.labels.get("finished_reason")
        name = metric.name + (f"/{reason}" if reason else "")
        values[name.removeprefix("vllm:")] = getattr(metric, "value", getattr(metric, "count", None))
    return values


def test_metrics_count_what_happened():
    fake = fake_engine(says("hello"))
    for request_id in "ab":
        fake.engine.add_request(request_id, "hi" * 4, SamplingParams(**GREEDY))
    fake.run()
    for request_id in "cde":
        fake.engine.add_request(request_id, "hi" * 4, SamplingParams(**GREEDY))
    fake.engine.step()
    assert metrics_of(fake)["num_requests_running"] == 3
    fake.engine.abort_request(["c", "d", "e"])
    metrics = metrics_of(fake)
    assert metrics["num_requests_running"] == 0
    assert (metrics["request_success/stop"], metrics["request_success/abort"]) == (2, 3)
    assert (metrics["prompt_tokens"], metrics["generation_tokens"]) == (5 * 8, 2 * 6 + 3)
    assert (metrics["time_to_first_token_seconds"], metrics["inter_token_latency_seconds"]) == (5, 10)
    assert metrics["prefix_cache_queries"] == 40
    assert metrics["prefix_cache_hits"] == 4 * 4  # one full block of four, the last token is always computed


def test_cached_tokens_and_timing_are_reported():
    fake = fake_engine(says("hello"))
    cold, warm = (fake.complete("a long prompt", **GREEDY) for _ in range(2))
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 12)
    metrics = cold.metrics
    assert 0 < metrics.queued_ts <= metrics.scheduled_ts <= metrics.first_token_ts <= metrics.last_token_ts
    assert metrics.num_generation_tokens == 6
    assert metrics.first_token_latency > 0
    assert metrics.queued_time_s + metrics.prefill_time_s + metrics.decode_time_s == pytest.approx(
        metrics.last_token_ts - metrics.queued_ts
    )


def test_the_prefix_cache_is_reset_only_when_idle_unless_forced():
    fake = fake_engine(mixes)
    fake.engine.add_request("a", "a long prompt", SamplingParams(**GREEDY))
    fake.engine.step()
    assert not fake.engine.reset_prefix_cache()
    assert fake.engine.reset_prefix_cache(reset_running_requests=True)
    assert len(fake.run()["a"][-1].outputs[0].token_ids) == 40
    assert fake.engine.reset_prefix_cache()
    assert fake.complete("a long prompt", **GREEDY).num_cached_tokens == 0


def test_kv_events_tell_of_stored_blocks():
    fake = fake_engine(says("x"), enable_kv_events=True)
    fake.complete("12345678", **GREEDY)
    stored = [event for event in fake.engine.take_kv_events() if type(event).__name__ == "BlockStored"]
    assert [token_id for event in stored for token_id in event.token_ids][:8] == list(b"12345678")
    assert fake.engine.take_kv_events() == []


def test_rpc_reaches_the_workers():
    fake = fake_engine()
    assert fake.engine.collective_rpc("method", 1.0, (1,), {"a": 2}) == ["method"]
    assert fake.executor.calls == [("method", 1.0, (1,), {"a": 2})]
    assert fake.engine.collective_rpc(lambda worker, x: x + 1, args=(1,)) == [2]


def test_what_is_no_lora_request_is_refused():
    with pytest.raises(InvalidRequestError, match="lora_request"):
        fake_engine().engine.add_request("r", "hi", SamplingParams(), lora_request=object())


def test_a_refused_request_leaves_nothing():
    fake = fake_engine()
    with pytest.raises(InvalidRequestError):
        fake.engine.add_request("r", [10**6], SamplingParams())
    assert_nothing_is_left(fake)


def test_an_engine_without_tokenizer_says_so():
    with pytest.raises(InvalidRequestError, match="skip_tokenizer_init"):
        fake_engine(tokenizer=None).engine.get_tokenizer()


def test_preempted_requests_end_with_the_same_tokens():
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=30) for i in range(6)]

    def run(kv_bytes):
        fake = fake_engine(mixes, kv_bytes=kv_bytes)
        for index, one in enumerate(params):
            fake.engine.add_request(str(index), f"prompt number {index}", one)
        outputs = fake.run()
        assert_nothing_is_left(fake)
        preemptions = sum(o[-1].metrics.num_preemptions for o in outputs.values())
        return {i: o[-1].outputs[0].token_ids for i, o in outputs.items()}, preemptions

    ample, none = run(2**20)
    tight, some = run(256 * 18)  # 17 blocks of 4 tokens; one sequence takes up to 12
    assert (none, some > 0) == (0, True)
    assert tight == ample
