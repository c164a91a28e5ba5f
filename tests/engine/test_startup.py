"""What a start plans: cache size, fitted max_model_len, one plan for all workers."""

from __future__ import annotations

import pytest

from octavo.engine.startup import start_core
from octavo.errors import ConfigError
from tests.engine.fakes import FakeExecutor, fake_config

BLOCK_BYTES = 256  # of the fake executor's one layer: 4 tokens


class ManyWorkers(FakeExecutor):
    budgets = (BLOCK_BYTES * 40, BLOCK_BYTES * 30)

    def get_kv_cache_specs(self):
        return super().get_kv_cache_specs() * len(self.budgets)

    def determine_available_memory(self):
        return list(self.budgets)

    def initialize_from_config(self, kv_cache_configs, max_model_len):
        self.plans, self.max_model_len = kv_cache_configs, max_model_len


def test_the_whole_budget_becomes_blocks():
    started = start_core(fake_config(), FakeExecutor(kv_bytes=BLOCK_BYTES * 100))
    assert started.kv_cache_config.num_blocks == 100
    assert started.max_kv_tokens == 99 * 4  # one block is the null block


def test_a_length_the_user_left_open_is_fitted_to_the_memory():
    executor = FakeExecutor(kv_bytes=BLOCK_BYTES * 11)
    started = start_core(fake_config(max_model_len=1000, fit_max_model_len=True), executor)
    assert started.config.model.max_model_len == started.config.scheduler.max_model_len == 40
    assert executor.max_model_len == 40


def test_a_length_that_fits_is_kept():
    started = start_core(fake_config(max_model_len=64, fit_max_model_len=True), FakeExecutor())
    assert started.config.model.max_model_len == 64


def test_a_length_the_user_asked_for_must_fit():
    with pytest.raises(ConfigError, match="max_model_len=1000"):
        start_core(fake_config(max_model_len=1000), FakeExecutor(kv_bytes=BLOCK_BYTES * 11))


def test_memory_for_less_than_two_tokens_is_an_error():
    with pytest.raises(ConfigError, match="kv_cache_memory_bytes"):
        start_core(fake_config(fit_max_model_len=True), FakeExecutor(kv_bytes=BLOCK_BYTES))


def test_the_smallest_worker_decides_for_all():
    executor = ManyWorkers()
    started = start_core(fake_config(max_model_len=1000, fit_max_model_len=True), executor)
    assert [plan.num_blocks for plan in executor.plans] == [30, 30]
    assert started.config.model.max_model_len == 29 * 4
