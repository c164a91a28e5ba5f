"""Typed reading of a config.json: a wrong or missing value is an error that names the key."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from octavo.errors import CheckpointError

_LARGEST = 2.0**127  # what is computed with it is computed in float32

_Str = str  # the class below has a method of that name


class HFConfig:
    """A Hugging Face config.json, or the same facts derived from GGUF metadata.

    Getters take a default; without one the key must be there. JSON null counts as absent.
    """

    def __init__(self, values: Mapping[str, Any], source: str = "config.json") -> None:
        self.values = dict(values)
        self.source = source

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def int(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "an integer", value)
        return value

    def float(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_LARGEST < value < _LARGEST:
            raise self._wrong(key, "a number, finite in float32", value)
        return float(value)

    def bool(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def str(self, key: _Str, default: _Str | None = None) -> _Str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def list(self, key: _Str, default: list[Any] | None = None) -> list[Any]:
        value = self._get(key, default)
        if not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return value

    def section(self, key: _Str) -> HFConfig | None:
        """Return a nested object as an HFConfig, or None when absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object", value)
        return HFConfig(value, f"{self.source}: {key}")

    def _get(self, key: _Str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self.source} has no {key!r}, which this architecture needs")
        return value

    def _wrong(self, key: _Str, expected: _Str, value: Any) -> CheckpointError:
        return CheckpointError(f"{self.source}: {key!r} must be {expected}, got {reprlib.repr(value)}")
