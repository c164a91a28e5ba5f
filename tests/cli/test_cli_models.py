"""`octavo models`: usage, and what it asks of the catalog."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("arguments", [("pull",), ("path",), ("path", "a", "b"), ("list", "a"), ()])
def test_wrong_numbers_of_names_are_refused(octavo, arguments):
    result = octavo("models", *arguments)
    assert result.status == 2 and result.err.count("\n") == 1
