"""Random schedules against a fake executor that checks every key it reads.

The default run takes 400 schedules. For the full 5,000:
    OCTAVO_FUZZ_SCHEDULES=5000 python -m pytest tests/scheduler/test_fuzz.py
"""

from __future__ import annotations

import os
import random
from collections import deque
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.config.configs import CacheConfig, SchedulerConfig
from octavo.scheduler.request import RequestStatus
from octavo.scheduler.scheduler import Scheduler
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec
from octavo.types.sampling_params import SamplingParams
from octavo.types.step import ModelRunnerOutput, SchedulerOutput
from tests.scheduler.fake_executor import EOS, VOCAB_SIZE, FakeExecutor, solo_run
from tests.scheduler.helpers import assert_all_free, check_invariants, full, kv_config, make_request, sliding

NUM_SCHEDULES = int(os.environ.get("OCTAVO_FUZZ_SCHEDULES", "400"))

LAYOUTS: list[tuple[KVCacheSpec, ...]] = [
    (full(4),),
    (full(1),),
    (sliding(6, 4),),
    (full(4), sliding(7, 4)),
    (full(4), sliding(5, 2), sliding(5, 2)),
    (full(2), sliding(9, 4)),
    (full(4), sliding(3, 6)),
    (full(2), sliding(1, 2)),
]


@dataclass(frozen=True)
class FuzzRequest:
    """family, prefix_len: a prompt prefix that others may share; num_children: n > 1; abort_step: None = never."""

    family: int
    prefix_len: int
    suffix_len: int
    max_tokens: int
    num_children: int
    arrival_step: int
    abort_step: int | None
    priority: int
    salt: int
    stops_at_eos: bool
    num_recovered: int


@dataclass(frozen=True)
class Scenario:
    layout: tuple[KVCacheSpec, ...]
    spare_blocks: int
    config: SchedulerConfig
    prefix_caching: bool
    watermark: float
    num_drafts: int
    num_in_flight: int
    failure_rate: float
    chance_seed: int
    requests: tuple[FuzzRequest, ...]


fuzz_requests = st.builds(
    FuzzRequest,
    family=st.integers(0, 2),
    prefix_len=st.integers(0, 20),
    suffix_len=st.integers(1, 16),
    max_tokens=st.integers(1, 16),
    num_children=st.sampled_from([1, 1, 1, 2, 3]),
    arrival_step=st.integers(0, 12),
    abort_step=st.none() | st.integers(0, 20),
    priority=st.integers(0, 2),
    salt=st.sampled_from([0, 0, 0, 1]),
    stops_at_eos=st.booleans(),
    num_recovered=st.sampled_from([0, 0, 0, 2]),
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    max_model_len = draw(st.integers(16, 48))
    chunked = draw(st.sampled_from([True, True, True, False]))
    budget = draw(st.integers(2, 40)) if chunked else max_model_len
    runs_ahead = draw(st.sampled_from([False, False, True]))
    num_drafts = 0 if runs_ahead else draw(st.sampled_from([0, 0, 2, 4]))
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=draw(st.integers(1, 8)),
        max_model_len=max_model_len,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 4, 9])),
        max_num_partial_prefills=draw(st.integers(1, 4)),
        max_long_partial_prefills=draw(st.integers(1, 2)),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        reserve_full_sequence=draw(st.booleans()),
        num_lookahead_tokens=draw(st.sampled_from([0, num_drafts])),
        async_scheduling=runs_ahead,
    )
    num_in_flight = 2 if runs_ahead else draw(st.sampled_from([1, 1, 1, 2, 3]))
    return Scenario(
        layout=draw(st.sampled_from(LAYOUTS)),
        spare_blocks=draw(st.integers(0, 30)),
        config=config,
        prefix_caching=draw(st.sampled_from([True, True, True, False])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        num_drafts=num_drafts,
        num_in_flight=num_in_flight,
        failure_rate=draw(st.sampled_from([0.0, 0.0, 0.05])) if num_in_flight == 1 or runs_ahead else 0.0,
        chance_seed=draw(st.integers(0, 2**32)),
        requests=tuple(draw(st.lists(fuzz_requests, min_size=1, max_size=7))),
    )


class Fuzz:
    """One run of a scenario: arrivals, steps with results delayed, aborts in between, and the checks."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.chance = random.Random(scenario.chance_seed)
        plan = _plan(scenario)
        cache_config = CacheConfig(4, 0, enable_prefix_caching=scenario.prefix_caching, watermark=scenario.watermark)
        self.scheduler = Scheduler(scenario.config, cache_config, plan)
        self.salts: dict[str, int] = {}
        self.executor = FakeExecutor(plan.groups, plan.num_blocks, self.salts, scenario.num_drafts, self.chance)
        self.expected: dict[str, tuple[list[int], str]] = {}
        self.got: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.aborted: set[str] = set()
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self.solo_steps = 0
        self.num_steps = 0

    def run(self) -> None:
        last_arrival = max(request.arrival_step for request in self.scenario.requests)
        num_idle = 0
        while self.num_steps <= last_arrival or self.scheduler.has_unfinished_requests():
            self._arrive()
            output = self.scheduler.schedule()
            self._check_output(output)
            fails = self.chance.random() < self.scenario.failure_rate
            self.in_flight.append((output, self.executor.execute(output, fails)))
            self._abort()
            if len(self.in_flight) == self.scenario.num_in_flight:
                self._update()
            check_invariants(self.scheduler)
            self.num_steps += 1
            is_idle = not output.num_scheduled_tokens and bool(self.scheduler.requests)
            num_idle = num_idle + 1 if is_idle else 0
            assert num_idle <= self.scenario.num_in_flight + 1, "requests wait and nothing runs"
            limit = 2 * self.solo_steps * self.scenario.num_in_flight + last_arrival + 20
            assert self.num_steps <= limit, f"more than twice the steps of running one by one: {self.num_steps}"
        while self.in_flight:
            self._update()
        self.executor.execute(self.scheduler.schedule(), False)  # the worker hears of the last ends
        self._check_end()

    def _arrive(self) -> None:
        max_model_len = self.scheduler.max_model_len
        for index, spec in enumerate(self.scenario.requests):
            if spec.arrival_step != self.num_steps:
                continue
            prompt = [(spec.family * 5 + i * i) % VOCAB_SIZE for i in range(spec.prefix_len)]
            prompt += [(index * 7 + i * 3) % VOCAB_SIZE for i in range(spec.suffix_len)]
            prompt = prompt[-(max_model_len - 1) :]
            eos = EOS if spec.stops_at_eos else None
            for child in range(spec.num_children):
                request_id = f"{index}-{child}"
                output, reason = solo_run(prompt, child, eos, spec.max_tokens, max_model_len)
                recovered = output[: min(spec.num_recovered, len(output) - 1)]
                self.expected[request_id] = output[len(recovered) :], reason
                self.got[request_id] = []
                self.salts[request_id] = spec.salt
                self.solo_steps += len(prompt) // self.scenario.config.max_num_batched_tokens + len(output) + 1
                threshold = self.scenario.config.long_prefill_token_threshold
                self.solo_steps += len(prompt) // threshold if threshold else 0
                self.scheduler.add_request(
                    make_request(
                        request_id,
                        prompt,
                        params=SamplingParams(max_tokens=spec.max_tokens),
                        seed=child,
                        priority=spec.priority,
                        arrival_time=float(spec.arrival_step),
                        cache_salt=f"salt{spec.salt}" if spec.salt else None,
                        eos_token_id=eos,
                        output_token_ids=recovered,
                    )
                )

    def _abort(self) -> None:
        """Abort between schedule and update, where results of the request may still be on their way."""
        for index, spec in enumerate(self.scenario.requests):
            if spec.abort_step == self.num_steps:
                request_ids = [f"{index}-{child}" for child in range(spec.num_children)]
                self.aborted.update(request_ids)
                self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)
        if self.chance.random() < 0.02 and self.scenario.num_in_flight == 1:
            self._update()
            assert self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def _update(self) -> None:
        if not self.in_flight:
            return
        step, result = self.in_flight.popleft()
        for message in self.scheduler.update_from_output(step, result).outputs:
            assert message.request_id not in self.reasons, "output after the end"
            self.got[message.request_id] += message.new_token_ids
            if message.finish_reason is not None:
                self.reasons[message.request_id] = str(message.finish_reason)
        if result.failures:
            while self.in_flight:
                self.scheduler.discard(self.in_flight.popleft()[0])
            self.executor.is_spoilt = False

    def _check_output(self, output: SchedulerOutput) -> None:
        config = self.scenario.config
        counts = output.num_scheduled_tokens
        assert sum(counts.values()) == output.total_num_scheduled_tokens <= config.max_num_batched_tokens
        assert len(self.scheduler.running) <= config.max_num_seqs
        new = [data.request_id for data in output.scheduled_new_requests]
        assert sorted([*new, *output.scheduled_cached_requests.request_ids]) == sorted(counts)
        partial = [r for r in self.scheduler.running if r.num_computed_tokens < r.num_tokens - 1]
        assert len(partial) <= config.max_num_partial_prefills
        assert config.enable_chunked_prefill or not partial

    def _check_end(self) -> None:
        assert_all_free(self.scheduler)
        assert not self.executor.rows, "the worker was not told of an end"
        for request_id, (output, reason) in self.expected.items():
            if self.reasons.get(request_id, "error") != "error":
                assert (self.got[request_id], self.reasons[request_id]) == (output, reason)
            else:
                assert request_id in self.reasons or request_id in self.aborted, f"{request_id} never ended"
                assert request_id in self.aborted or self.scenario.failure_rate
                assert self.got[request_id] == output[: len(self.got[request_id])]
        assert self.scheduler.reset_prefix_cache()


def _plan(scenario: Scenario) -> KVCacheConfig:
    """Give the pool room for a sequence of 12 tokens at least, and then some."""
    blocks = sum(-(-12 // spec.block_size) + 2 for spec in scenario.layout)
    return kv_config(1 + blocks + scenario.spare_blocks, *scenario.layout)


@given(scenarios())
@settings(
    max_examples=NUM_SCHEDULES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_random_schedules_keep_the_books_and_give_solo_results(scenario: Scenario) -> None:
    Fuzz(scenario).run()
