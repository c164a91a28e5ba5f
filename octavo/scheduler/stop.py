"""When a sequence ends: checked after each new token, in a fixed order."""

from __future__ import annotations

from octavo.scheduler.request import Request, RequestStatus
from octavo.types.sampling_params import RepetitionDetectionParams

REPETITION_STOP_REASON = "repetition_detected"


def check_stop(request: Request) -> RequestStatus | None:
    """Return the status that the newest token puts the request into, or None if it goes on. Sets stop_reason.

    End of sequence, stop token ids, length, repetition; the first that holds counts. min_tokens is no concern of the
    first two: until then the sampler masks those tokens.
    """
    token_id = request.all_token_ids[-1]
    if token_id == request.eos_token_id:
        return RequestStatus.FINISHED_STOPPED
    if token_id in request.stop_token_ids:
        request.stop_reason = token_id
        return RequestStatus.FINISHED_STOPPED
    if len(request.all_token_ids) >= request.max_total_tokens:
        return RequestStatus.FINISHED_LENGTH_CAPPED
    params = request.sampling_params
    if params.repetition_detection is None or request.num_output_tokens < params.min_tokens:
        return None
    if ends_in_repetition(request.all_token_ids, request.num_output_tokens, params.repetition_detection):
        request.stop_reason = REPETITION_STOP_REASON
        return RequestStatus.FINISHED_REPETITION
    return None


def ends_in_repetition(token_ids: list[int], num_output_tokens: int, detection: RepetitionDetectionParams) -> bool:
    """Tell whether the output ends in min_count copies of one pattern of an allowed size."""
    if detection.max_pattern_size == 0:
        return False
    end = len(token_ids)
    longest = min(detection.max_pattern_size, num_output_tokens // detection.min_count)
    for size in range(max(detection.min_pattern_size, 1), longest + 1):
        if token_ids[-1] != token_ids[-1 - size]:
            continue  # nearly always: no slice is taken
        pattern = token_ids[end - size :]
        starts = range(end - size * detection.min_count, end - size, size)
        if all(token_ids[start : start + size] == pattern for start in starts):
            return True
    return False
