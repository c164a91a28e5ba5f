"""What holds for every test."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_works() -> None:
    """Let SIGINT interrupt: a shell that starts the tests in the background has it ignored, and tests press Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
