"""What a reader sees of a growing text: whole characters, cut at stop strings, nothing that may still become one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.text_state import TextState
from tests.engine.fakes import byte_tokenizer

TOKENIZER = byte_tokenizer()
texts = st.text("ab\n é🙂", max_size=30)
stop_lists = st.lists(st.text("ab\n é", min_size=1, max_size=4), max_size=3)


def text_state(stops=(), include=False, min_tokens=0, prompt=(0x20,)) -> TextState:
    return TextState(TOKENIZER.detokenizer(prompt), stops, include, min_tokens)


def steps_of(data: st.DataObject, token_ids: list[int]) -> list[list[int]]:
    """Cut tokens into steps of random sizes."""
    steps = []
    while token_ids:
        size = data.draw(st.integers(1, 4))
        steps.append(token_ids[:size])
        token_ids = token_ids[size:]
    return steps


def stream(state: TextState, steps: list[list[int]]) -> tuple[list[str], int]:
    """Feed steps and read deltas to the end; return the deltas and the number of tokens that count."""
    deltas, num_tokens = [], 0
    for step in steps:
        num_kept = state.add(step)
        num_tokens += num_kept
        if state.stop_string is not None:
            break
        deltas.append(state.read(delta=True))
    state.close()
    deltas.append(state.read(delta=True))
    return deltas, num_tokens


def expected_text(text: str, stops: list[str], include: bool) -> str:
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)]
    return text


@given(st.data(), texts, stop_lists, st.booleans())
def test_deltas_join_to_the_final_text_however_steps_are_cut(data, text, stops, include):
    steps = steps_of(data, list(text.encode()))
    deltas, _ = stream(text_state(stops, include), steps)
    whole = text_state(stops, include)
    for step in steps:
        whole.add(step)
        if whole.stop_string is not None:
            break
    whole.close()
    assert "".join(deltas) == whole.read(delta=False) == expected_text(text, stops, include)


@given(st.data(), texts, stop_lists)
def test_no_delta_ends_with_what_became_a_stop_string(data, text, stops):
    """Whatever was sent stays valid: it is a prefix of the final text, and no stop string reaches into it."""
    deltas, _ = stream(text_state(stops), steps_of(data, list(text.encode())))
    final = expected_text(text, stops, include=False)
    sent = ""
    for delta in deltas:
        sent += delta
        assert final.startswith(sent)
        assert not any(stop in sent for stop in stops)


@given(st.data(), texts, stop_lists)
def test_only_a_possible_stop_string_is_held_back(data, text, stops):
    state = text_state(stops)
    seen = b""
    for step in steps_of(data, list(text.encode())):
        state.add(step)
        seen += bytes(step)
        if state.stop_string is not None:
            return
        visible = state.read(delta=False)
        decoded = seen.decode(errors="ignore")  # an unfinished last character is not text yet
        held = decoded[len(visible) :]
        assert decoded.startswith(visible)
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


@given(st.data(), texts.filter(bool), stop_lists)
def test_the_tokens_that_count_end_where_the_stop_string_completes(data, text, stops):
    token_ids = list(text.encode())
    _, num_tokens = stream(text_state(stops), steps_of(data, token_ids))
    cut = expected_text(text, stops, include=True)
    assert bytes(token_ids[:num_tokens]) == cut.encode()


@given(st.lists(st.integers(0, 259), max_size=40), st.data())
def test_any_tokens_give_the_text_that_decoding_them_at_once_gives(token_ids, data):
    deltas, _ = stream(text_state(), steps_of(data, token_ids))
    assert "".join(deltas) == TOKENIZER.decode(token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("min_tokens, stopped_after", [(0, 2), (1, 2), (2, 5), (4, 5), (5, None)])
def test_min_tokens_delays_stop_strings(min_tokens, stopped_after):
    state = text_state(["ab"], min_tokens=min_tokens)
    num_tokens = state.add(b"abcab")
    assert (num_tokens if state.stop_string else None) == stopped_after


def test_a_stop_string_may_begin_within_min_tokens():
    state = text_state(["ab"], min_tokens=1)
    assert state.add(b"xabc") == 3
    state.close()
    assert state.read(delta=False) == "x"


def test_an_incomplete_last_character_comes_out_at_the_end_only():
    state = text_state()
    state.add("é".encode()[:1])
    assert state.read(delta=True) == ""
    state.close()
    assert state.read(delta=True) == "\ufffd"
