from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.errors import CheckpointError
from octavo.loader.hf_config import HFConfig

CONFIG = HFConfig(
    {"size": 8, "eps": 1e-5, "flag": False, "name": "x", "items": [1], "none": None, "rope": {"factor": 2}}, "c.json"
)


def test_values_of_the_right_type_are_read() -> None:
    assert CONFIG.int("size") == 8
    assert CONFIG.float("eps") == 1e-5 and CONFIG.float("size") == 8.0
    assert CONFIG.bool("flag") is False
    assert CONFIG.str("name") == "x"
    assert CONFIG.list("items") == [1]
    section = CONFIG.section("rope")
    assert section is not None and section.int("factor") == 2


def test_null_counts_as_absent() -> None:
    assert "none" not in CONFIG and "absent" not in CONFIG and "flag" in CONFIG
    assert CONFIG.int("none", 3) == 3 and CONFIG.section("none") is None
    for key in ("none", "absent"):
        with pytest.raises(CheckpointError, match=rf"c\.json has no '{key}'"):
            CONFIG.int(key)


@pytest.mark.parametrize(
    ("read", "key", "expected"),
    [
        (CONFIG.int, "eps", "an integer"),
        (CONFIG.int, "flag", "an integer"),
        (CONFIG.float, "flag", "a number, finite in float32"),
        (CONFIG.float, "name", "a number, finite in float32"),
        (CONFIG.bool, "size", "true or false"),
        (CONFIG.str, "size", "a string"),
        (CONFIG.list, "name", "a list"),
        (CONFIG.section, "items", "an object"),
    ],
)
def test_values_of_another_type_are_refused(read: Callable[[str], Any], key: str, expected: str) -> None:
    with pytest.raises(CheckpointError, match=rf"c\.json: '{key}' must be {expected}, got"):
        read(key)
