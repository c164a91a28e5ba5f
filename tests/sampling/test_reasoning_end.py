"""The end of reasoning: which id is forced after which tokens, and that an answer follows where it must."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from octavo.sampling.reasoning_end import ReasoningEnd
from octavo.types.reasoning import ReasoningMarkers

START, END = [1, 2], [3, 4]


def forced(budget: int, output: list[int], begins_inside: bool = False, start: list[int] = START) -> int | None:
    """Return the only id that is left after this output, seen at once, or None when none is forced."""
    return left(ReasoningEnd(budget, ReasoningMarkers(start, END, begins_inside)), output)


def left(processor: ReasoningEnd, output: list[int]) -> int | None:
    logits = np.arange(12, dtype=np.float32)
    processor.apply(logits, output)
    finite = np.flatnonzero(np.isfinite(logits)).tolist()
    assert len(finite) in (1, 12)
    return finite[0] if len(finite) == 1 else None


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([], None),
        ([7, 7, 7, 7], None),  # not in the reasoning
        ([1, 2], None),
        ([1, 2, 7], None),
        ([1, 2, 7, 7], 3),
        ([1, 2, 7, 7, 3], 4),  # in the midst of the marker
        ([1, 2, 7, 7, 3, 4], None),
        ([1, 2, 7, 7, 3, 4, 7, 7, 7], None),
        ([1, 2, 7, 3], None),  # it may be ending by itself, and one token is left
        ([1, 2, 7, 3, 7], 3),  # it was not: both count
        ([1, 2, 7, 3, 4, 1, 2], None),  # a second section, one token left
        ([1, 2, 7, 3, 4, 1, 2, 7], 3),
        ([1, 2, 7, 7, 3, 4, 8, 1, 2], 3),  # a second section, nothing left
    ],
)
def test_the_end_is_forced_when_two_tokens_were_spent(output: list[int], expected: int | None):
    assert forced(2, output) == expected


def test_reasoning_that_the_prompt_began_counts_from_the_first_token():
    assert forced(0, [], begins_inside=True) == 3
    assert forced(1, [], begins_inside=True) is None
    assert forced(1, [7], begins_inside=True) == 3
    assert forced(1, [7, 3, 4, 7], begins_inside=True) is None


def test_a_format_without_an_opening_marker_ends_once():
    assert forced(1, [7], begins_inside=True, start=[]) == 3
    assert forced(1, [7, 3, 4, 7, 7], begins_inside=True, start=[]) is None


def test_the_marker_of_a_call_ends_the_reasoning_too():
    """Some models leave the end out before a call, which must not be broken up."""
    markers = ReasoningMarkers(START, END, further_ends=[[5, 6]])
    assert left(ReasoningEnd(2, markers), [1, 2, 7, 7]) == 3
    assert left(ReasoningEnd(2, markers), [1, 2, 7, 5, 6]) is None
    assert left(ReasoningEnd(2, markers), [1, 2, 7, 5, 6, 8, 8, 8]) is None


def test_what_is_forced_does_not_depend_on_when_the_tokens_were_seen():
    """A row that returns after a preemption sees all of its tokens at once, and drafts may be taken back."""
    generator = np.random.default_rng(0)
    for _ in range(300):
        output = generator.integers(1, 6, 30).tolist()
        budget = int(generator.integers(0, 8))
        seen_one_by_one = ReasoningEnd(budget, ReasoningMarkers(START, END))
        for length in [*range(31), 12, 20]:
            assert left(seen_one_by_one, output[:length]) == forced(budget, output[:length]), (output, length, budget)


def test_a_generation_under_a_budget_has_exactly_that_much_reasoning():
    made = ReasoningEnd(5, ReasoningMarkers(START, END))
    output = [1, 2]
    while (token := left(made, output)) is None and len(output) < 50:
        output.append(7)
    while token is not None:
        output.append(token)
        token = left(made, output)
    assert output == [1, 2, *[7] * 5, 3, 4]


EOS = [10, 11]  # the likeliest of all in `weighed`


def weighed(markers: ReasoningMarkers, output: list[int], budget: int | None = None) -> tuple[int, bool]:
    """Return the likeliest id after an output whose answer must follow, and whether the output may end."""
    logits = np.arange(12, dtype=np.float32)
    ReasoningEnd(budget, msgspec.structs.replace(markers, eos_token_ids=EOS)).apply(logits, output)
    return int(logits.argmax()), bool(np.isfinite(logits[EOS]).any())


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([], (11, True)),  # no reasoning, and a grammar holds
        ([1, 2], (3, False)),
        ([1, 2, 7, 7], (3, False)),
        ([1, 2, 7, 3], (4, False)),
        ([1, 2, 7, 3, 4], (11, True)),
        ([1, 2, 7, 3, 4, 1, 2], (11, True)),  # part of the answer
    ],
)
def test_an_output_that_would_end_before_its_answer_closes_its_reasoning(output: list[int], expected: tuple[int, bool]):
    markers = ReasoningMarkers(START, END, answer_token_ids=END)
    assert weighed(markers, output) == expected
    assert weighed(markers, output, budget=20) == expected


def test_messages_in_other_channels_come_before_the_answer_too():
    markers = ReasoningMarkers(START, END, may_begin=True, answer_token_ids=[8, 9])
    for output in ([], [1, 2, 7], [1, 2, 7, 3, 4], [1, 2, 7, 3, 4, 8]):
        assert weighed(markers, output) == (4 if output[-1:] == [3] else 3, False)
    assert weighed(markers, [1, 2, 7, 3, 4, 8, 9, 7]) == (11, True)


def test_an_answer_that_need_not_follow_may_be_left_out():
    logits = np.arange(12, dtype=np.float32)
    ReasoningEnd(9, ReasoningMarkers(START, END, answer_token_ids=END)).apply(logits, [1, 2, 7])
    assert logits.tolist() == list(range(12))
