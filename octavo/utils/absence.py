"""What asks for nothing, although it is there."""

from __future__ import annotations

from collections.abc import Mapping


def holds_nothing(value: object) -> bool:
    """Say whether an option or field is None or empty, as programs write it that serve several kinds of engines."""
    return value is None or (isinstance(value, (Mapping, list, tuple, str)) and not value)
