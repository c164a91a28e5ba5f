"""Tiny models for tests that start processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.processes import wait_until
from tests.tiny_models import gemma3_config, llama_config, write_tiny_model


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-llama"), llama_config())


@pytest.fixture(scope="session")
def tiny_gemma3(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-gemma3"), gemma3_config())


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
