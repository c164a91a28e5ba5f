"""Log-probabilities as the user reads them: right ids, ranks and sums, and texts that join to the output."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.logprobs import LogprobsState, TokenTexts, unpack_prompt_logprobs
from octavo.types.messages import PackedLogprobs
from tests.engine.fakes import EOS, byte_tokenizer

TEXTS = TokenTexts(byte_tokenizer())


def packed(rows: list[list[tuple[int, float]]], ranks: list[int]) -> PackedLogprobs:
    return PackedLogprobs(
        num_positions=len(rows),
        num_candidates=len(rows[0]) if rows else 1,
        token_ids=np.array([[token_id for token_id, _ in row] for row in rows], "<i4").tobytes(),
        logprobs=np.array([[value for _, value in row] for row in rows], "<f4").tobytes(),
        ranks=np.array(ranks, "<i4").tobytes(),
    )


def sampled_only(token_ids: list[int]) -> PackedLogprobs:
    return packed([[(token_id, -0.25)] for token_id in token_ids], [1] * len(token_ids))


@given(st.text(max_size=20), st.data())
def test_texts_of_the_sampled_tokens_join_to_the_text(text, data):
    state = LogprobsState(TEXTS, [32], candidates_are_top=True)
    token_ids = list(text.encode())
    position = 0
    while position < len(token_ids):
        size = data.draw(st.integers(1, 3))
        step = token_ids[position : position + size]
        state.add(sampled_only(step), len(step))
        position += size
    positions = state.read(delta=False)
    assert "".join(positions[i][token_id].decoded_token for i, token_id in enumerate(token_ids)) == text
    assert (
        all("\ufffd" not in p[t].decoded_token for p, t in zip(positions, token_ids, strict=True)) or "\ufffd" in text
    )


def test_the_sum_is_the_same_however_many_tokens_come_in_a_step():
    values, sums = [-3.4646306, -0.6040913, -1e-9, -7.3e-12, -1.3e-13, -2.1e-15, -1.77e-15, -3.8e-16], []
    for sizes in ([1] * 8, [2, 6]):
        state, rest = LogprobsState(None, [32], candidates_are_top=True), iter(values)
        for size in sizes:
            state.add(packed([[(5, next(rest))] for _ in range(size)], [1] * size), size)
        sums.append(state.cumulative_logprob)
    assert sums[0] == sums[1]


def test_part_of_a_character_has_no_text_and_the_last_part_has_all_of_it():
    state = LogprobsState(TEXTS, [32], candidates_are_top=True)
    emoji = list("🙂".encode())
    state.add(sampled_only(emoji), 4)
    texts = [position[token_id].decoded_token for position, token_id in zip(state.read(False), emoji, strict=True)]
    assert texts == ["", "", "", "🙂"]


def test_an_alternative_shows_what_it_would_add_in_its_place():
    """After the first three bytes of a face, another last byte gives another face."""
    state = LogprobsState(TEXTS, list("🙂".encode())[:3], candidates_are_top=True)
    state.add(packed([[(0x82, -0.1), (0x83, -2.0), (ord("a"), -3.0)]], [1]), 1)
    position = state.read(False)[0]
    assert [candidate.decoded_token for candidate in position.values()] == ["🙂", "🙃", "\ufffda"]


def test_the_sampled_token_comes_first_and_the_others_follow_by_rank():
    state = LogprobsState(TEXTS, [32], candidates_are_top=True)
    state.add(packed([[(7, -4.0), (65, -0.5), (66, -1.5)]], [17]), 1)
    assert [(token_id, p.rank, p.logprob) for token_id, p in state.read(False)[0].items()] == [
        (7, 17, -4.0),
        (65, 1, -0.5),
        (66, 2, -1.5),
    ]


def test_a_sampled_token_among_the_top_ones_appears_once():
    state = LogprobsState(TEXTS, [32], candidates_are_top=True)
    state.add(packed([[(66, -1.5), (65, -0.5), (66, -1.5)]], [2]), 1)
    assert [(token_id, p.rank) for token_id, p in state.read(False)[0].items()] == [(66, 2), (65, 1)]


def test_requested_ids_have_no_rank():
    state = LogprobsState(TEXTS, [32], candidates_are_top=False)
    state.add(packed([[(66, -1.5), (65, -0.5)]], [2]), 1)
    assert [p.rank for p in state.read(False)[0].values()] == [2, None]


def test_special_tokens_show_their_text():
    state = LogprobsState(TEXTS, [32], candidates_are_top=True)
    state.add(sampled_only([EOS]), 1)
    assert state.read(False)[0][EOS].decoded_token == "<eos>"


def test_positions_after_a_stop_string_are_dropped_with_their_sum():
    state = LogprobsState(TEXTS, [32], candidates_are_top=True)
    state.add(sampled_only([65, 66, 67]), 2)
    assert len(state.read(False)) == 2
    assert state.cumulative_logprob == -0.5


def test_deltas_are_told_once():
    state = LogprobsState(TEXTS, [32], candidates_are_top=True)
    state.add(sampled_only([65]), 1)
    assert [list(p) for p in state.read(True)] == [[65]]
    state.add(sampled_only([66, 67]), 2)
    assert [list(p) for p in state.read(True)] == [[66], [67]]


def test_without_a_tokenizer_there_are_ids_only():
    state = LogprobsState(None, [32], candidates_are_top=True)
    state.add(sampled_only([65]), 1)
    assert state.read(False)[0][65].decoded_token is None


def test_prompt_positions_begin_with_none_and_their_texts_join_to_the_prompt():
    prompt = list("né 🙂".encode())
    positions = unpack_prompt_logprobs(sampled_only(prompt[1:]), TEXTS, prompt)
    assert positions[0] is None and len(positions) == len(prompt)
    assert "n" + "".join(positions[i][prompt[i]].decoded_token for i in range(1, len(prompt))) == "né 🙂"
