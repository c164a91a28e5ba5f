"""Tiny models for tests that start processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.processes import children_of, wait_until
from tests.tiny_models import gemma3_config, llama_config, write_tiny_model


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-llama"), llama_config())


@pytest.fixture(scope="session")
def tiny_gemma3(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-gemma3"), gemma3_config())


@pytest.fixture
def own_children() -> Callable[[], list[int]]:
    """Tell the child processes that the test has now: not those of fixtures that other tests left running."""
    earlier = set(children_of(os.getpid()))
    return lambda: [child for child in children_of(os.getpid()) if child not in earlier]


@pytest.fixture
def meeting_folder(monkeypatch, tmp_path_factory) -> Iterator[Path]:
    """A temporary folder (with a short path, for sockets) in which all engines of the test meet and leave nothing."""
    tmp_path_factory.getbasetemp()  # is made in the usual place
    folder = Path(tempfile.mkdtemp(prefix="test-"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    wait_until(lambda: not list(folder.glob("octavo-*")))
    shutil.rmtree(folder)
