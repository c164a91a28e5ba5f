"""Reported faults about where an answer ends: stop strings, stop ids, end of sequence, min_tokens, max_tokens."""

from __future__ import annotations

import pytest

from octavo import RequestOutputKind, SamplingParams
from tests.cases.conftest import run, stream, tokens

ALPHABET = "Here is the English alphabet: ABC"
COUNTING = "1, 2, 3, 4, 5, 6,"

pytestmark = pytest.mark.model


def test_stop_string_in_the_middle_of_a_token(smol):
    """B001: the stop was looked for at the end of the text only."""
    base = run(smol, ALPHABET, temperature=0, max_tokens=24).outputs[0]
    pieces = [smol.get_tokenizer().decode([token_id]) for token_id in base.token_ids]
    piece = next(piece for piece in pieces if len(piece) >= 3)
    stop = piece[1:2]
    stopped = run(smol, ALPHABET, temperature=0, max_tokens=24, stop=stop).outputs[0]
    assert stopped.finish_reason == "stop" and stopped.stop_reason == stop
    assert stopped.text == base.text[: base.text.find(stop)]


def test_streamed_text_never_holds_what_could_still_become_a_stop_string(smol):
    """B002: parts of a stop string of several tokens had been sent when it was complete."""
    base = run(smol, COUNTING, temperature=0, max_tokens=40).outputs[0].text
    assert len(base) > 20
    stop = base[10:18]
    (outputs,) = stream(smol, [COUNTING], SamplingParams(temperature=0, max_tokens=40, stop=[stop]))
    whole = run(smol, COUNTING, temperature=0, max_tokens=40, stop=[stop]).outputs[0]
    sent = ""
    for output in outputs:
        sent += output.outputs[0].text
        assert base.startswith(sent)
        assert len(sent) <= base.find(stop), "text of the stop string was sent"
    assert sent == whole.text == base[: base.find(stop)]
    assert outputs[-1].outputs[0].finish_reason == "stop"


def test_text_held_back_for_a_stop_string_comes_out_when_the_answer_ends_otherwise(smol):
    """B002: what was held back is not lost."""
    base = run(smol, COUNTING, temperature=0, max_tokens=20).outputs[0].text
    never = base[-3:] + "@@@"
    (outputs,) = stream(smol, [COUNTING], SamplingParams(temperature=0, max_tokens=20, stop=[never]))
    assert "".join(output.outputs[0].text for output in outputs) == base


def test_a_stop_string_may_be_a_special_token_that_the_text_leaves_out(smol):
    """Stop strings were looked for in a text without special tokens, so that the answer ran on."""
    tokenizer = smol.get_tokenizer()
    marker = "<|im_start|>"
    forced = {"temperature": 0, "max_tokens": 5, "logit_bias": {tokenizer.convert_tokens_to_ids(marker): 100}}
    for stop in (marker, ["never", marker]):
        (outputs,) = stream(smol, [COUNTING], SamplingParams(**forced, stop=stop))
        last = outputs[-1].outputs[0]
        assert (last.finish_reason, last.stop_reason) == ("stop", marker)
        assert "".join(output.outputs[0].text for output in outputs) == ""
    shown = run(smol, COUNTING, **forced, stop=marker, include_stop_str_in_output=True).outputs[0]
    assert shown.text == marker and len(shown.token_ids) == 1
    other = run(smol, COUNTING, **forced, stop="<|im_end|>").outputs[0]
    assert (other.text, other.finish_reason, len(other.token_ids)) == ("", "length", 5)


def test_a_stop_token_shows_in_the_text_only_when_asked_for(smol):
    """B005: True and False gave the same text."""
    base = run(smol, COUNTING, temperature=0, max_tokens=8).outputs[0]
    stop_id = base.token_ids[3]
    position = list(base.token_ids).index(stop_id)
    without, with_it = (
        run(
            smol,
            COUNTING,
            temperature=0,
            max_tokens=8,
            stop_token_ids=[stop_id],
            include_stop_str_in_output=include,
        ).outputs[0]
        for include in (False, True)
    )
    assert list(without.token_ids) == list(with_it.token_ids) == list(base.token_ids[: position + 1])
    assert without.stop_reason == with_it.stop_reason == stop_id
    tokenizer = smol.get_tokenizer()
    assert without.text == tokenizer.decode(base.token_ids[:position])
    assert with_it.text == tokenizer.decode(base.token_ids[: position + 1]) != without.text


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_the_stop_string_is_in_the_text_only_when_asked_for(smol, include, streamed):
    """B006: streamed or not, completions or chat."""
    base = run(smol, COUNTING, temperature=0, max_tokens=24).outputs[0].text
    stop = base[6:9]
    params = SamplingParams(temperature=0, max_tokens=24, stop=[stop], include_stop_str_in_output=include)
    if streamed:
        (outputs,) = stream(smol, [COUNTING], params)
        text, reason = "".join(output.outputs[0].text for output in outputs), outputs[-1].outputs[0].stop_reason
    else:
        completion = smol.generate(COUNTING, params, use_tqdm=False)[0].outputs[0]
        text, reason = completion.text, completion.stop_reason
    assert reason == stop
    assert text.endswith(stop) if include else stop not in text


def test_min_tokens_holds_back_the_end_of_sequence_itself(smol):
    """B008: only the user's stop ids were masked."""
    eos = smol.get_tokenizer().eos_token_id
    biased = dict(temperature=0, max_tokens=32, logit_bias={eos: 100})
    assert len(tokens(smol, COUNTING, **biased)) == 1  # the bias does make it end
    output = run(smol, COUNTING, min_tokens=8, **biased).outputs[0]
    assert len(output.token_ids) == 9 and output.token_ids[-1] == eos
    assert output.finish_reason == "stop" and output.stop_reason is None


def test_min_tokens_holds_back_stop_ids_and_stop_strings(smol):
    """B008: so with every kind of stop."""
    base = run(smol, COUNTING, temperature=0, max_tokens=16).outputs[0]
    first = base.token_ids[0]
    held = run(smol, COUNTING, temperature=0, max_tokens=16, min_tokens=6, stop_token_ids=[first]).outputs[0]
    assert len(held.token_ids) >= 6 and first not in held.token_ids[:6]
    stop = base.text[:2]
    held = run(smol, COUNTING, temperature=0, max_tokens=16, min_tokens=6, stop=[stop]).outputs[0]
    assert len(held.token_ids) >= 6


def test_ignore_eos_ignores_every_end_id_of_the_model_but_no_stop_id_of_the_user(smol):
    """B009: further end-of-sequence ids of the generation config still stopped."""
    ends = smol.get_tokenizer().end_of_generation_ids
    assert len(ends) > 1, "the model must have several ends for this test to mean something"
    for end in ends:
        free = run(smol, COUNTING, temperature=0, max_tokens=12, ignore_eos=True, logit_bias={end: 100}).outputs[0]
        assert len(free.token_ids) == 12 and free.finish_reason == "length"
        assert end in free.token_ids
        options = dict(temperature=0, max_tokens=12, ignore_eos=True, logit_bias={end: 100})
        stopped = run(smol, COUNTING, stop_token_ids=[end], **options).outputs[0]
        assert list(stopped.token_ids) == [end] and stopped.stop_reason == end


@pytest.mark.parametrize("model", ["smol", "gemma"])
def test_every_end_id_of_the_checkpoint_ends_an_answer(model, request):
    """B099: only the first end-of-sequence id of a GGUF file counted, and chats ran to max_tokens."""
    llm = request.getfixturevalue(model)
    for end in llm.get_tokenizer().end_of_generation_ids:
        output = run(llm, COUNTING, temperature=0, max_tokens=12, logit_bias={end: 100}).outputs[0]
        assert list(output.token_ids) == [end] and output.finish_reason == "stop"
        assert output.text == ""  # and its marker does not show


def test_a_chat_ends_by_itself(smol):
    """B099: S ends at <|im_end|>."""
    (answer,) = smol.chat(
        [{"role": "user", "content": "Say hi"}], SamplingParams(temperature=0, max_tokens=200), use_tqdm=False
    )
    assert answer.outputs[0].finish_reason == "stop"
    assert "<|" not in answer.outputs[0].text


def test_the_earliest_stop_string_wins(smol):
    """B001: whatever the order of the list."""
    base = run(smol, COUNTING, temperature=0, max_tokens=24).outputs[0].text
    early, late = base[4:7], base[12:15]
    for stops in ([early, late], [late, early]):
        output = run(smol, COUNTING, temperature=0, max_tokens=24, stop=stops).outputs[0]
        assert output.text == base[: min(base.find(early), base.find(late))]


def test_cumulative_and_delta_and_final_outputs_agree(smol):
    """B002: the kinds of output are views of one answer."""
    params = SamplingParams(temperature=0, max_tokens=16, output_kind=RequestOutputKind.CUMULATIVE)
    engine = smol.llm_engine
    engine.add_request("cumulative", COUNTING, params)
    cumulative = []
    while engine.has_unfinished_requests():
        cumulative += engine.step()
    (deltas,) = stream(smol, [COUNTING], params)
    final = run(smol, COUNTING, temperature=0, max_tokens=16).outputs[0]
    assert cumulative[-1].outputs[0].text == final.text == "".join(one.outputs[0].text for one in deltas)
    joined = [token_id for one in deltas for token_id in one.outputs[0].token_ids]
    assert list(cumulative[-1].outputs[0].token_ids) == list(final.token_ids) == joined
