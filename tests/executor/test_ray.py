"""Workers as Ray actors, in a cluster of this machine. Skipped where Ray is not installed."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, EngineDeadError
from tests.engine.processes import SMALL, comparable

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
PARAMS = SamplingParams(max_tokens=12, temperature=0.9, seed=5, ignore_eos=True)
PROMPTS = [[5, 6, 7], list(range(20, 60)), [9]]


@pytest.fixture(scope="module")
def cluster():
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, configure_logging=False)
    yield ray
    ray.shutdown()


def generate(llm: LLM) -> list:
    outputs = [comparable(output) for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    llm.llm_engine.shutdown()
    return outputs


@needs_ray
@pytest.mark.parametrize("options", [{}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_results_are_those_of_processes_of_our_own(tiny_llama, cluster, options):
    expected = generate(LLM(str(tiny_llama), distributed_executor_backend="mp", **SMALL, **options))
    assert generate(LLM(str(tiny_llama), distributed_executor_backend="ray", **SMALL, **options)) == expected
    assert cluster.util.placement_group_table() == {} or all(
        group["state"] == "REMOVED" for group in cluster.util.placement_group_table().values()
    )


@needs_ray
def test_a_dead_actor_is_noticed_and_named(tiny_llama, cluster):
    extension = "tests.executor.extensions.Extension"
    options = {"tensor_parallel_size": 2, "worker_extension_cls": extension, **SMALL}
    llm = LLM(str(tiny_llama), distributed_executor_backend="ray", **options)
    os.kill(llm.collective_rpc("process_id")[1], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=r"rank 1 (is gone|of 2 .* has ended)"):
        llm.generate(PROMPTS, PARAMS, use_tqdm=False)


@needs_ray
def test_a_cluster_that_is_too_small_is_refused_with_the_numbers(tiny_llama, cluster):
    with pytest.raises(ConfigError, match="4 workers need 4 CPUs of the Ray cluster, which has 2"):
        LLM(
            str(tiny_llama),
            distributed_executor_backend="ray",
            tensor_parallel_size=2,
            pipeline_parallel_size=2,
            **SMALL,
        )


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_error_says_what_to_install(tiny_llama):
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[ray\]'"):
        LLM(str(tiny_llama), distributed_executor_backend="ray", **SMALL)


@needs_ray
def test_a_session_that_the_program_ends_is_told_and_none_begins(tiny_llama, cluster):
    """The last test: the cluster is gone behind it."""
    llm = LLM(str(tiny_llama), distributed_executor_backend="ray", **SMALL)
    cluster.shutdown()
    with pytest.raises(EngineDeadError, match="Ray was shut down"):
        llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    llm.llm_engine.shutdown()
    assert not cluster.is_initialized()
