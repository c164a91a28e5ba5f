"""The native ops once for every instruction set that this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo import envs
from octavo.ops.interface import Ops

try:
    from octavo import _native

    ISAS = _native.available_isas()
except ImportError:
    ISAS = []

if not ISAS or envs.ops_backend() == "reference":  # an installation without a compiler
    collect_ignore_glob = ["test_native_*.py"]


@pytest.fixture(params=ISAS)
def native(request: pytest.FixtureRequest) -> Iterator[Ops]:
    """The native ops under one instruction set, with two threads."""
    from octavo.ops.native import NativeOps

    isa, num_threads = _native.isa(), _native.num_threads()
    _native.set_isa(request.param)
    _native.set_num_threads(2)
    yield NativeOps()
    _native.set_isa(isa)
    _native.set_num_threads(num_threads)
