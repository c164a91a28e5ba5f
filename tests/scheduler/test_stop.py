"""Ends of sequences: order and reasons."""

from __future__ import annotations

import pytest

from octavo.scheduler.request import RequestStatus
from octavo.scheduler.stop import check_stop, ends_in_repetition
from octavo.types.sampling_params import RepetitionDetectionParams, SamplingParams
from tests.scheduler.helpers import make_request


def ended(output, max_total=100, params=None, **fields):
    request = make_request("a", [50, 51], params=params or SamplingParams(max_tokens=90), **fields)
    request.max_total_tokens = max_total
    request.all_token_ids += output
    return check_stop(request), request.stop_reason


def test_end_of_sequence_has_no_stop_reason():
    assert ended([1, 2], eos_token_id=2, stop_token_ids=[2]) == (RequestStatus.FINISHED_STOPPED, None)


def test_stop_token_is_its_own_reason():
    assert ended([1, 3], eos_token_id=2, stop_token_ids=[5, 3]) == (RequestStatus.FINISHED_STOPPED, 3)


def test_stop_wins_over_length_at_the_last_token():
    assert ended([1, 2], max_total=4, eos_token_id=2)[0] is RequestStatus.FINISHED_STOPPED
    assert ended([1, 1], max_total=4, eos_token_id=2)[0] is RequestStatus.FINISHED_LENGTH_CAPPED


def test_only_the_newest_token_counts():
    assert ended([2, 3, 1], eos_token_id=2, stop_token_ids=[3]) == (None, None)


def test_no_end_of_sequence_id_means_none_ends_it():
    assert ended([0], eos_token_id=None) == (None, None)


def detection(**fields):
    return SamplingParams(max_tokens=90, repetition_detection=RepetitionDetectionParams(**fields))


def test_repetition_ends_with_its_reason_but_not_before_min_tokens():
    params = detection(max_pattern_size=2, min_count=3)
    assert ended([4, 5] * 3, params=params) == (RequestStatus.FINISHED_REPETITION, "repetition_detected")
    params.min_tokens = 7
    assert ended([4, 5] * 3, params=params) == (None, None)
    assert ended([1, *[4, 5] * 3], params=params)[0] is RequestStatus.FINISHED_REPETITION


def test_detection_switched_off_never_ends():
    assert ended([4] * 50, params=detection(max_pattern_size=0))[0] is None


@pytest.mark.parametrize(
    ("output", "smallest", "largest", "count", "expected"),
    [
        ([7, 7, 7], 0, 1, 3, True),
        ([7, 7], 0, 1, 3, False),
        ([7, 7, 7, 7], 2, 2, 2, True),
        ([1, 2, 3, 1, 2, 3], 1, 2, 2, False),
        ([1, 2, 3, 1, 2, 3], 1, 3, 2, True),
        ([1, 2, 1, 2, 3], 1, 3, 2, False),
        ([9, 1, 2, 1, 2], 2, 5, 2, True),
    ],
)
def test_repetition_patterns(output, smallest, largest, count, expected):
    params = RepetitionDetectionParams(max_pattern_size=largest, min_pattern_size=smallest, min_count=count)
    assert ends_in_repetition([8, 8, *output], len(output), params) is expected


def test_prompt_is_no_part_of_a_repetition():
    params = RepetitionDetectionParams(max_pattern_size=1, min_count=3)
    assert not ends_in_repetition([7, 7, 7, 7], 1, params)
