"""Replicas as Ray actors, in a cluster of this machine. Skipped where Ray is not installed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, EngineArgs
from octavo.engine import process_start
from octavo.engine.data_parallel import check_front_end, plan_replicas
from octavo.errors import ConfigError
from tests.engine.processes import SMALL, is_alive, wait_until
from tests.engine.test_headless import num_finished, remote_replica, results

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
IN_RAY: dict[str, Any] = {**SMALL, "data_parallel_size": 2, "data_parallel_backend": "ray"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray

    ray.init("local", num_cpus=3, include_dashboard=False, configure_logging=False)
    yield ray
    ray.shutdown()


def parent_of(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])


@needs_ray
@pytest.mark.native_ops
@pytest.mark.usefixtures("meeting_folder")
def test_replicas_in_actors_give_the_same_results_and_the_death_of_one_costs_none(tiny_llama, cluster):
    expected = results(LLM(str(tiny_llama), **SMALL))
    llm = LLM(str(tiny_llama), **IN_RAY)
    assert results(llm) == expected
    assert num_finished(llm) == {"0": 4, "1": 4}
    core = remote_replica(llm).child.process_id
    actor = parent_of(core)
    assert actor != os.getpid()
    threading.Timer(0.05, os.kill, (actor, signal.SIGKILL)).start()
    assert [results(llm) for _ in range(3)] == [expected] * 3
    wait_until(lambda: not is_alive(core))
    wait_until(lambda: remote_replica(llm).is_serving and remote_replica(llm).child.process_id != core)  # Ray's doing
    assert results(llm) == expected
    again = remote_replica(llm).child.process_id
    assert parent_of(again) != actor
    llm.llm_engine.shutdown()
    wait_until(lambda: not is_alive(again))
    groups = cluster.util.placement_group_table().values()
    assert groups and all(group["state"] == "REMOVED" for group in groups)


@needs_ray
def test_what_does_not_fit_a_cluster_is_refused_with_the_numbers(tiny_llama, cluster):
    with pytest.raises(ConfigError, match="2 replicas need 4 CPUs of the Ray cluster, which has 3"):
        LLM(str(tiny_llama), tensor_parallel_size=2, **IN_RAY)


@needs_ray
def test_impossible_options_and_replicas_that_do_not_fit_are_told_at_start(tiny_llama, cluster, monkeypatch):
    with pytest.raises(ConfigError, match="has 2 layers"):
        LLM(str(tiny_llama), **{**IN_RAY, "data_parallel_size": 1}, pipeline_parallel_size=3)
    monkeypatch.setattr(process_start, "engine_facts", lambda *_: {"the version of Octavo": "an older one"})
    with pytest.raises(ConfigError, match=r"replica 0 does not start in its Ray actor: .* an older one here"):
        LLM(str(tiny_llama), **IN_RAY)


@needs_ray
@pytest.mark.usefixtures("meeting_folder")
def test_an_engine_ends_after_the_session_in_which_its_actors_were(tiny_llama, cluster):
    """The last test with the cluster, which is gone behind it."""
    llm = LLM(str(tiny_llama), **IN_RAY)
    cluster.shutdown()
    llm.llm_engine.shutdown()
    assert not cluster.is_initialized(), "and begins no other"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"data_parallel_hybrid_lb": True}, "one front end has all replicas"),
        ({"data_parallel_rank": 0}, "one front end has all replicas"),
        ({"data_parallel_size_local": 3}, "at least 3 of them on this machine"),
        ({"data_parallel_start_rank": 1}, "leave data_parallel_start_rank out"),
        ({"distributed_executor_backend": "ray"}, "each replica on one machine"),
    ],
)
def test_options_that_describe_something_else_are_refused(options, problem):
    args = EngineArgs(data_parallel_size=2, data_parallel_backend="ray", **options)
    with pytest.raises(ConfigError, match=problem):
        check_front_end(args, plan_replicas(args))


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_error_says_what_to_install(tiny_llama):
    with pytest.raises(ConfigError, match=r"data_parallel_backend='ray' needs Ray: pip install 'octavo\[ray\]'"):
        LLM(str(tiny_llama), **IN_RAY)
