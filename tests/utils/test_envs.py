"""The list of environment variables: all that are read, and read here only."""

from __future__ import annotations

import re
from pathlib import Path

import octavo
from octavo import envs


def test_the_known_variables_are_those_that_are_read_and_documented():
    package = Path(octavo.__file__).parent
    read = set(re.findall(r"""(?:environ\.get|_positive_int)\(\s*"(OCTAVO_[A-Z_]+)""", Path(envs.__file__).read_text()))
    assert read == envs.KNOWN
    for path in package.rglob("*.py"):
        if path != Path(envs.__file__):
            assert not re.search(r"environ.*OCTAVO_", path.read_text()), f"{path} reads a variable by itself"
