"""What crosses the process border arrives as it was sent, or is refused before it is sent."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import EngineArgs, RequestOutputKind, SamplingParams
from octavo.engine import core_messages as wire
from octavo.errors import (
    CheckpointError,
    ConfigError,
    EngineDeadError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedError,
)
from octavo.types.messages import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    PackedLogprobs,
)
from octavo.types.raised_error import RaisedError, error_as_data, error_from_data
from octavo.types.request import EngineCoreRequest, FinishReason
from octavo.types.stats import PrefixCacheStats, SchedulerStats
from tests.invariance.workloads import random_workload

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)
TEXT = st.text(max_size=10)


class ImportableProcessor:
    """A class that another process can import."""


def packed_logprobs() -> st.SearchStrategy[PackedLogprobs]:
    data = st.binary(max_size=32)
    return st.builds(PackedLogprobs, st.integers(0, 9), st.integers(1, 9), data, data, data)


REQUESTS = st.builds(
    EngineCoreRequest,
    request_id=TEXT,
    prompt_token_ids=IDS,
    sampling_params=st.integers(0, 2**32).map(lambda seed: random.Random(seed).choice(random_workload(seed).params)),
    arrival_time=st.floats(0, 1e10),
    seed=st.integers(0, 2**64 - 1),
    eos_token_id=st.none() | st.integers(0, 2**31),
    stop_token_ids=IDS,
    cache_salt=st.none() | TEXT,
    priority=st.integers(-(2**63), 2**63 - 1),
    output_token_ids=IDS,
)
OUTPUTS = st.builds(
    EngineCoreOutput,
    request_id=TEXT,
    new_token_ids=IDS,
    logprobs=st.none() | packed_logprobs(),
    prompt_logprobs=st.none() | packed_logprobs(),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    stop_reason=st.none() | st.integers(0, 2**31) | TEXT,
    num_cached_tokens=st.integers(0, 2**31),
    events=st.lists(st.builds(EngineCoreEvent, st.sampled_from(EngineCoreEventType), st.floats(0, 1e10)), max_size=3),
)
STATS = st.builds(
    SchedulerStats,
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.floats(0, 1),
    st.integers(0, 10**9),
    st.builds(PrefixCacheStats, st.integers(0, 9), st.integers(0, 9)),
)


@settings(deadline=None)
@given(REQUESTS)
def test_a_request_arrives_as_it_was_sent(request):
    assert wire.decode_core_message(wire.encode(wire.AddRequest(request))) == wire.AddRequest(request)


@given(st.lists(OUTPUTS, max_size=4), st.floats(0, 1e10), st.none() | STATS)
def test_outputs_arrive_as_they_were_sent(outputs, timestamp, stats):
    message = wire.StepDone(EngineCoreOutputs(outputs=outputs, timestamp=timestamp, scheduler_stats=stats))
    assert wire.decode_front_message(wire.encode(message)) == message


def test_all_parameters_arrive_and_bad_words_with_their_ids():
    params = SamplingParams(
        temperature=0.7,
        seed=2**64 - 1,
        bad_words=["x"],
        logit_bias={3: -1.5},
        extra_args={"a": [1, {"b": None}]},
        output_kind=RequestOutputKind.DELTA,
        repetition_detection={"max_pattern_size": 3, "min_count": 2},
        max_tokens=None,
    )
    params.set_bad_words_token_ids([[1], [2, 3]])
    request = EngineCoreRequest("r", [1], params, 0.0, 1)
    arrived = wire.decode_core_message(wire.encode(wire.AddRequest(request))).request.sampling_params
    assert arrived == params
    assert arrived.bad_words_token_ids == [[1], [2, 3]]


@pytest.mark.parametrize("message", [wire.AbortRequests(["a"]), wire.CallService(3, "m", [1, "x"]), wire.StopCore()])
def test_other_messages_to_the_core_arrive(message):
    assert wire.decode_core_message(wire.encode(message)) == message


@pytest.mark.parametrize(
    "note",
    [wire.CoreReady(8, 7, 6, 5), wire.StartFailed(RaisedError("ConfigError", "no")), wire.Admitted(["a"])],
)
def test_notes_arrive(note):
    assert wire.decode_note(wire.encode(note)) == note


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("c"),
        UnsupportedError("u"),
        CheckpointError("k"),
        ModelNotFoundError("m"),
        EngineDeadError("d"),
        InvalidRequestError("i", "prompt"),
    ],
)
def test_our_errors_are_raised_as_what_they_were(error):
    again = error_from_data(error_as_data(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert getattr(again, "parameter", None) == getattr(error, "parameter", None)


def test_another_error_keeps_its_name_and_text():
    again = error_from_data(error_as_data(KeyError("x")))
    assert type(again) is EngineDeadError
    assert "KeyError: 'x'" in str(again)


def test_options_become_plain_data_and_come_back():
    args = EngineArgs(model=Path("/models/x"), logits_processors=[ImportableProcessor], hf_overrides={"a": [1, {}]})
    options = msgspec.msgpack.decode(msgspec.msgpack.encode(wire.options_as_data(args)))
    assert options["model"] == "/models/x"
    assert options["logits_processors"] == [f"{__name__}:ImportableProcessor"]
    assert EngineArgs(**options).hf_overrides == {"a": [1, {}]}


def test_a_class_that_no_other_process_can_import_is_refused_with_the_options_name():
    class Local:
        pass

    with pytest.raises(ConfigError, match=r"logits_processors .*Local must be defined in a module"):
        wire.options_as_data(EngineArgs(logits_processors=[Local]))


@pytest.mark.parametrize("value", [object(), 2**70])
def test_an_option_that_is_no_plain_data_is_refused(value):
    with pytest.raises(ConfigError, match="hf_overrides cannot be passed"):
        wire.options_as_data(EngineArgs(hf_overrides={"x": value}))


def test_calls_with_functions_are_refused():
    with pytest.raises(UnsupportedError, match="plain data"):
        wire.call_message(1, "collective_rpc", ("method", None, [lambda: 1], {}))
