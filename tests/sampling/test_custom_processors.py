"""Custom logits processors: the batch interface, the per-request adapter, and how far a raising one reaches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from octavo.errors import ConfigError, InvalidRequestError
from octavo.ops.reference import ReferenceOps
from octavo.sampling.custom_processors import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    load_logits_processor,
    validate_with_processors,
)
from octavo.sampling.sampler import Sampler
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import NewRequestData

V = 60
MakeRequest = Callable[..., NewRequestData]


class ForceToken(LogitsProcessor):
    """Forces extra_args["force"] for the requests that have it, as the batch interface is meant to be used."""

    argmax_invariant = False

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        force = (sampling_params.extra_args or {}).get("force", 0)
        if not isinstance(force, int):
            raise ValueError(f"force must be a token id, got {force!r}")

    def __init__(self, context: Any, device: str, is_pin_memory: bool) -> None:
        super().__init__(context, device, is_pin_memory)
        self.forced: dict[int, int] = {}
        self.updates: list[BatchUpdate | None] = []

    def is_argmax_invariant(self) -> bool:
        return self.argmax_invariant

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self.updates.append(batch_update)
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.forced.pop(index, None)
        for index, params, _, _ in batch_update.added:
            self.forced.pop(index, None)
            if params.extra_args and "force" in params.extra_args:
                self.forced[index] = params.extra_args["force"]

    def apply(self, logits: np.ndarray) -> np.ndarray:
        for index, token_id in self.forced.items():
            if token_id == 13:
                raise RuntimeError("thirteen")
            logits[index] = -np.inf
            logits[index, token_id] = 0
        return logits


class LateForce(ForceToken):
    argmax_invariant = True


class CountUp(AdapterLogitsProcessor):
    """Forces the number of tokens so far; raises when the request asks for it."""

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., np.ndarray] | None:
        kind = (params.extra_args or {}).get("count")
        if kind == "bad constructor":
            raise KeyError("no such count")
        if kind is None:
            return None

        def process(output_ids: Sequence[int], logits: np.ndarray) -> np.ndarray:
            if kind == "raise":
                raise RuntimeError("cannot count")
            result = np.full_like(logits, -np.inf)
            result[len(output_ids)] = 0
            return result

        def process_with_prompt(prompt_ids: list[int], output_ids: Sequence[int], logits: np.ndarray) -> np.ndarray:
            result = np.full_like(logits, -np.inf)
            result[10 * len(prompt_ids) + len(output_ids)] = 0
            return result

        return process_with_prompt if kind == "prompt" else process


def sampler_with(*processors: object, max_num_seqs: int = 4) -> Sampler:
    return Sampler(ReferenceOps(), V, max_num_seqs, logits_processors=processors)


def zeros(num_rows: int) -> np.ndarray:
    return np.zeros((num_rows, V), np.float32)


# -- adapters ----------------------------------------------------------------------------------------------------------


def test_an_adapter_sees_its_own_request_only(make_request: MakeRequest) -> None:
    sampler = sampler_with(CountUp)
    sampler.add_request(0, make_request(extra_args={"count": "yes"}, output=[50, 50]))
    sampler.add_request(1, make_request(temperature=0))
    sampler.add_request(2, make_request(extra_args={"count": "prompt"}))
    tokens = [sampler.sample(zeros(3), [0, 1, 2]).token_ids for _ in range(3)]
    assert tokens == [[2, 0, 30], [3, 0, 31], [4, 0, 32]]


def test_a_raising_adapter_fails_its_own_request_only(make_request: MakeRequest) -> None:
    sampler = sampler_with(CountUp)
    sampler.add_request(0, make_request(extra_args={"count": "raise"}))
    sampler.add_request(1, make_request(extra_args={"count": "bad constructor"}, temperature=0, logprobs=1))
    sampler.add_request(2, make_request(extra_args={"count": "yes"}))
    output = sampler.sample(zeros(3), [0, 1, 2])
    assert sorted(output.failures) == [0, 1] and output.token_ids[2] == 0 and not output.logprobs
    assert "RuntimeError: cannot count" in output.failures[0] and "no such count" in output.failures[1]
    sampler.remove_request(1)
    sampler.add_request(1, make_request(temperature=0))
    assert list(sampler.sample(zeros(2), [1, 2]).failures) == []


@pytest.mark.parametrize("returned", [None, 0.0, np.zeros(1), np.zeros((1, V)), "logits"], ids=repr)
def test_an_adapter_that_returns_no_logits_fails_its_request_and_says_so(
    make_request: MakeRequest, returned: object
) -> None:
    class Returns(AdapterLogitsProcessor):
        def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., object] | None:
            return (lambda output_ids, logits: returned) if params.extra_args else None

    sampler = sampler_with(Returns)
    sampler.add_request(0, make_request(extra_args={"on": True}, temperature=0))
    sampler.add_request(1, make_request(temperature=0))
    output = sampler.sample(zeros(2), [0, 1])
    assert list(output.failures) == [0] and "the processor returned" in output.failures[0]


# -- batch processors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processor", [ForceToken, LateForce])
def test_a_batch_processor_finds_its_requests_in_any_step(make_request: MakeRequest, processor: type) -> None:
    sampler = sampler_with(processor)
    sampler.add_request(3, make_request(extra_args={"force": 7}))
    sampler.add_request(1, make_request(extra_args={"force": 8}))
    sampler.add_request(0, make_request(temperature=0.0))
    assert sampler.sample(zeros(3), [3, 0, 1]).token_ids == [7, 0, 8]
    assert sampler.sample(zeros(1), [1]).token_ids == [8]
    sampler.remove_request(3)
    sampler.add_request(3, make_request(temperature=0.0))
    assert sampler.sample(zeros(2), [1, 3]).token_ids == [8, 0]


def test_updates_tell_what_changed_and_hold_the_live_output(make_request: MakeRequest) -> None:
    sampler = sampler_with(ForceToken)
    processor: ForceToken = sampler._custom._early[0]  # type: ignore[assignment]
    sampler.add_request(2, make_request(prompt=[4, 5], output=[6], temperature=0))
    sampler.sample(zeros(1), [2])
    sampler.sample(zeros(1), [2])
    sampler.remove_request(2)
    sampler.add_request(0, make_request())
    sampler.remove_request(0)
    sampler.sample(zeros(0), [])
    sampler.add_request(1, make_request())
    sampler.sample(zeros(1), [1])
    first, second, third = processor.updates
    assert first is not None and first.batch_size == 3 and list(first.removed) == []
    ((index, params, prompt_ids, output_ids),) = first.added
    assert (index, prompt_ids, output_ids) == (2, [4, 5], [6, 0, 0]) and params.temperature == 0
    assert second is None
    assert third is not None and list(third.removed) == [2] and [entry[0] for entry in third.added] == [1]


def test_a_row_freed_and_refilled_unseen_is_announced_once(make_request: MakeRequest) -> None:
    sampler = sampler_with(ForceToken)
    processor: ForceToken = sampler._custom._early[0]  # type: ignore[assignment]
    sampler.add_request(0, make_request())
    sampler.sample(zeros(1), [0])
    sampler.remove_request(0)
    sampler.add_request(0, make_request())
    sampler.remove_request(0)
    sampler.add_request(1, make_request())
    sampler.sample(zeros(1), [1])
    update = processor.updates[-1]
    assert update is not None and list(update.removed) == [0] and [entry[0] for entry in update.added] == [1]


def test_a_raising_batch_processor_fails_the_rows_of_its_step(make_request: MakeRequest) -> None:
    sampler = sampler_with(ForceToken)
    sampler.add_request(0, make_request(extra_args={"force": 13}))
    sampler.add_request(1, make_request())
    output = sampler.sample(zeros(2), [0, 1])
    assert sorted(output.failures) == [0, 1]
    assert all("RuntimeError: thirteen" in text for text in output.failures.values())
    sampler.remove_request(0)
    assert not sampler.sample(zeros(1), [1]).failures


def test_argmax_invariant_processors_see_scaled_logits_of_random_rows(make_request: MakeRequest) -> None:
    seen = []

    class Watch(LateForce):
        def apply(self, logits: np.ndarray) -> np.ndarray:
            seen.append(logits.copy())
            return logits

    sampler = sampler_with(Watch)
    sampler.add_request(0, make_request(temperature=0.5))
    sampler.add_request(1, make_request(temperature=0))
    logits = np.random.default_rng(0).normal(size=(2, V)).astype(np.float32)
    output = sampler.sample(logits.copy(), [0, 1])
    np.testing.assert_array_equal(seen[0], np.stack((logits[0] / np.float32(0.5), logits[1])))
    plain = sampler_with()
    plain.add_request(0, make_request(temperature=0.5))
    plain.add_request(1, make_request(temperature=0))
    assert output.token_ids == plain.sample(logits.copy(), [0, 1]).token_ids


# -- loading and checks ------------------------------------------------------------------------------------------------


def test_processors_load_by_class_or_name(make_request: MakeRequest) -> None:
    assert load_logits_processor(ForceToken) is ForceToken
    name = "octavo.sampling.custom_processors:AdapterLogitsProcessor"
    assert load_logits_processor(name) is AdapterLogitsProcessor
    for wrong in ("nocolon", "no_such_module_xyz:A", "octavo.errors:Nothing", "octavo.errors:OctavoError", 5, dict):
        with pytest.raises(ConfigError, match=r"logits processor|cannot import"):
            load_logits_processor(wrong)


def test_processors_check_a_requests_parameters() -> None:
    validate_with_processors([ForceToken], SamplingParams(extra_args={"force": 3}))
    with pytest.raises(InvalidRequestError, match=r"ForceToken: force must be a token id, got 'x'"):
        validate_with_processors([ForceToken], SamplingParams(extra_args={"force": "x"}))
