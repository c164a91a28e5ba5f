"""What every backend does the same way with a group of ranks."""

from __future__ import annotations

from octavo.distributed.group import Group
from octavo.ops.interface import Float


def summed(x: Float, group: Group) -> Float:
    """Return the sum of x over the group's ranks, a new array."""
    total = x.copy()
    group.all_reduce(total)
    return total
