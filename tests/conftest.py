"""What holds for every test."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator

import pytest

from octavo import envs
from octavo.parsing.reasoning import REASONING_FORMATS
from octavo.parsing.tool_formats import TOOL_FORMATS

NATIVE_OPS = envs.ops_backend() != "reference" and importlib.util.find_spec("octavo._native") is not None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what only the native ops promise where they are not."""
    if item.get_closest_marker("native_ops") and not NATIVE_OPS:
        pytest.skip("the native ops promise this: with BLAS a row's bits depend on the others, and there is no tape")


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_works() -> None:
    """Let SIGINT interrupt: a shell that starts the tests in the background has it ignored, and tests press Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def plugins_end_with_their_test() -> Iterator[None]:
    """Undo what a plug-in did to the tables of formats: it may add to them and replace what is there."""
    tool_formats, reasoning_formats = dict(TOOL_FORMATS), dict(REASONING_FORMATS)
    yield
    for table, before in ((TOOL_FORMATS, tool_formats), (REASONING_FORMATS, reasoning_formats)):
        if table != before:
            table.clear()
            table.update(before)
