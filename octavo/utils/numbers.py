"""Numbers as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NUMBER = re.compile(r"(?P<number>-?\d+(\.\d+)?)(?P<unit>[kmgtKMGT]?)", re.ASCII)


def whole_number(text: str) -> int:
    """Read "4096", "4k" (4000), "4K" (4096), "1.5g", as vLLM's options do; ValueError for anything else."""
    match = _NUMBER.fullmatch(text.strip())
    value = Decimal(match["number"]) * _UNITS[match["unit"]] if match else Decimal("0.5")
    if value != int(value):
        raise ValueError(f"expected a whole number such as 4096, 4k (4000) or 4K (4096), got {text!r}")
    return int(value)
