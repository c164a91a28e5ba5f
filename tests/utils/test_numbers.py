"""Numbers with units."""

from __future__ import annotations

import pytest

from octavo.utils.numbers import whole_number


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), (" -1", -1), ("4k", 4000), ("4K", 4096), ("1.5k", 1500), ("500M", 500 * 2**20), ("2g", 2 * 10**9)],
)
def test_units_are_decimal_in_small_and_binary_in_capital_letters(text, value):
    assert whole_number(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5", "4kb", "1e3", "0x10", "٤"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="whole number"):
        whole_number(text)
