"""Reported faults about an engine and the processes around it."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest

from octavo import SamplingParams
from octavo.errors import EngineDeadError


def test_a_forked_child_cannot_use_the_engine_process_of_its_parent(tiny, monkeypatch):
    """Both waited at the same sockets: the child for ever, and the parent for answers that the child had taken."""
    monkeypatch.setenv("OCTAVO_ENABLE_MULTIPROCESSING", "1")
    llm = tiny()
    params = SamplingParams(max_tokens=2, temperature=0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            llm.generate("a", params, use_tqdm=False)
        except EngineDeadError as error:
            status = 0 if "fork" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert llm.generate("a", params, use_tqdm=False)[0].finished
    llm.llm_engine.shutdown()


@pytest.mark.parametrize(
    "options", [{}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}], ids=["plain", "guesses"]
)
def test_an_engine_that_nobody_has_any_more_gives_its_memory_back_at_once(tiny, options):
    """Weights and cache stayed until the collector of cycles ran, so the next model did not fit beside them."""
    gc.collect()
    gc.disable()
    try:
        llm = tiny(**options)
        llm.generate("a", SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=1), use_tqdm=False)
        runner = weakref.ref(llm.llm_engine.engine_core.engine_core.executor.worker.model_runner)
        del llm
        assert runner() is None
    finally:
        gc.enable()


def test_an_engine_that_nobody_has_any_more_ends_its_workers(tiny):
    gc.collect()
    gc.disable()
    others = _children()  # of engines that are there for many tests
    try:
        llm = tiny(tensor_parallel_size=2)
        llm.generate("a", SamplingParams(max_tokens=2, temperature=0), use_tqdm=False)
        own = _children() - others
        assert len(own) >= 2
        del llm
        assert not _children() & own
    finally:
        gc.enable()


def _children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
