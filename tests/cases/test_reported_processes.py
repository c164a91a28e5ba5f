"""Reported faults about an engine and the processes around it."""

from __future__ import annotations

import os

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
