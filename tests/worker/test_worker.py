"""The worker's byte budget for the KV cache."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from octavo.distributed.place import WorkerPlace
from octavo.errors import ConfigError
from octavo.platforms.cpu import MemoryFacts
from octavo.worker import worker as worker_module
from octavo.worker.worker import Worker
from tests.engine.fakes import fake_config


def budget(monkeypatch, activation_bytes: int = 100, num_replicas: int = 1, num_workers: int = 1, **cache) -> int:
    """What a worker takes on a machine of 10,000 bytes, 5,000 of them free and 1,000 its own."""
    monkeypatch.setattr(worker_module, "memory_facts", lambda: MemoryFacts(10_000, 5_000))
    monkeypatch.setattr(worker_module, "resident_bytes", lambda: 1_000)
    config = fake_config(**cache)
    config = replace(config, parallel=replace(config.parallel, data_parallel_size_local=num_replicas))
    worker = Worker(config, checkpoint=None, place=WorkerPlace(local_size=num_workers))
    monkeypatch.setattr(worker, "_profile", lambda: activation_bytes)
    monkeypatch.setattr(worker, "get_kv_cache_specs", lambda: {"layer": None})
    return worker.determine_available_memory()


def test_a_share_of_what_is_free_less_a_steps_activations(monkeypatch):
    assert budget(monkeypatch, memory_share=0.5) == 2_500 - 100


def test_a_share_of_the_machine_less_what_the_process_holds_and_activations(monkeypatch):
    assert budget(monkeypatch, memory_utilization=0.5) == 5_000 - 1_000 - 100


def test_a_share_larger_than_what_is_free_becomes_a_part_of_that(monkeypatch, caplog):
    got = budget(monkeypatch, memory_utilization=0.95, memory_share=0.5)
    assert got == 2_500 - 100 and "95%" in caplog.text and "free" in caplog.text


def test_workers_and_replicas_of_one_machine_share_its_memory(monkeypatch):
    assert budget(monkeypatch, memory_share=0.5, num_workers=2) == 1_250 - 100
    assert budget(monkeypatch, memory_share=0.5, num_replicas=2) == (5_000 - 1_000) // 2 // 2 - 100
    assert budget(monkeypatch, memory_share=0.5, num_replicas=2, num_workers=2) == (5_000 - 2_000) // 4 // 2 - 100
    assert budget(monkeypatch, memory_utilization=0.5, num_replicas=2) == 2_500 - 1_000 - 100


def test_explicit_bytes_are_taken_as_they_are(monkeypatch):
    assert budget(monkeypatch, memory_bytes=4_321, memory_utilization=0.9) == 4_321


@pytest.mark.parametrize(
    ("activation_bytes", "utilization", "problem"),
    [(100, 0.1, "nothing is left"), (4_000, 0.5, "nothing is left")],
)
def test_a_budget_of_nothing_is_refused(monkeypatch, activation_bytes, utilization, problem):
    with pytest.raises(ConfigError, match=f"{problem}.*kv_cache_memory_bytes"):
        budget(monkeypatch, activation_bytes, memory_utilization=utilization)


def test_steps_that_the_memory_cannot_hold_are_refused_by_their_option(monkeypatch):
    def profile_run(num_tokens):
        raise MemoryError("3.6 TiB")

    worker = Worker(fake_config(), None, WorkerPlace())
    monkeypatch.setattr(worker, "model_runner", SimpleNamespace(profile_run=profile_run), raising=False)
    with pytest.raises(ConfigError, match=r"up to 32 tokens \(3\.6 TiB\); lower max_num_batched_tokens"):
        worker.determine_available_memory()
