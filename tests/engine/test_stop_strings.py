"""The stop matcher against a slow oracle, for any stop strings and any way of cutting the text into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.stop_strings import StopMatcher

ALPHABET = "ab"
stop_lists = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4)
piece_lists = st.lists(st.text(ALPHABET, max_size=6), max_size=12)


def first_completion(text: str, stops: list[str]) -> tuple[str, int] | None:
    """The stop string that completes first (ties: list order), and where it ends."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return stop, end
    return None


def longest_open_prefix(text: str, stops: list[str]) -> int:
    return max((length for stop in stops for length in range(len(stop)) if text.endswith(stop[:length])), default=0)


@given(stop_lists, piece_lists)
def test_the_match_that_completes_first_wins_however_the_text_is_cut(stops, pieces):
    matcher = StopMatcher(stops)
    seen = ""
    for piece in pieces:
        seen += piece
        match = matcher.feed(piece)
        expected = first_completion(seen, stops)
        if expected is None:
            assert match is None
            assert matcher.num_held_back == longest_open_prefix(seen, stops)
        else:
            assert match is not None
            assert (match.stop_string, len(seen) - match.num_after) == expected
            return


@given(stop_lists, piece_lists, st.integers(0, 12))
def test_strings_that_complete_before_stopping_is_allowed_pass(stops, pieces, first_stopping_piece):
    matcher = StopMatcher(stops)
    seen = ""
    for number, piece in enumerate(pieces):
        may_stop = number >= first_stopping_piece
        match = matcher.feed(piece, may_stop)
        ends = [
            (end, order)
            for end in range(len(seen) + 1, len(seen) + len(piece) + 1)
            for order, stop in enumerate(stops)
            if (seen + piece)[:end].endswith(stop)
        ]
        seen += piece
        if may_stop and ends:
            assert match is not None
            end, order = min(ends)
            assert (match.stop_string, len(seen) - match.num_after) == (stops[order], end)
            return
        assert match is None


def test_only_what_could_become_a_stop_string_is_held_back():
    matcher = StopMatcher(["###", "\n\nUser:"])
    assert matcher.feed("Answer") is None
    assert matcher.num_held_back == 0
    assert matcher.feed(" 1#") is None
    assert matcher.num_held_back == 1
    assert matcher.feed("2\n\nUs") is None
    assert matcher.num_held_back == 4


def test_a_stop_string_that_overlaps_itself_is_found():
    matcher = StopMatcher(["aab"])
    assert matcher.feed("aaa") is None
    match = matcher.feed("bc")
    assert match is not None and match.num_after == 1


def test_of_two_that_complete_together_the_first_in_the_list_wins():
    assert StopMatcher(["xab", "ab"]).feed("xab").stop_string == "xab"
    assert StopMatcher(["ab", "xab"]).feed("xab").stop_string == "ab"
