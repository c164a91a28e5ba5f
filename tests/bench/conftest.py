"""A server to measure, and the command line that measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from octavo.entrypoints.cli.main import main
from tests.server.conftest import tiny, tiny_engine, tiny_folder

__all__ = ["tiny", "tiny_engine", "tiny_folder"]  # fixtures


@dataclass
class Said:
    """What a command printed, and its exit status."""

    status: Any
    out: str
    err: str


@pytest.fixture
def octavo(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run(*arguments: object) -> Said:
        try:
            status: Any = main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            status = leaving.code
        said = capsys.readouterr()
        return Said(status, said.out, said.err)

    return run
