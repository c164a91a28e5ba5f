"""Option values brought into the types that EngineArgs declares, whether they came from Python, JSON or a command line.

Only types: ranges and choices are decided where the options are resolved.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
import os
import types
import typing
from collections.abc import Mapping
from typing import Any

from octavo.config.engine_args import EngineArgs
from octavo.errors import ConfigError

_INT64_MAX = 2**63 - 1


def canonical_types(args: EngineArgs) -> EngineArgs:
    """Return a copy whose values have exactly the declared types; raises ConfigError naming option, type and value."""
    declared = typing.get_type_hints(EngineArgs)
    names = [option.name for option in dataclasses.fields(args)]
    return dataclasses.replace(args, **{name: _canonical(name, getattr(args, name), declared[name]) for name in names})


def _canonical(name: str, value: object, declared: Any) -> Any:
    kinds = typing.get_args(declared) if _is_union(declared) else (declared,)
    if value is None and types.NoneType in kinds:
        return None
    for kind in kinds:
        converted = _CONVERTERS[typing.get_origin(kind) or kind](value)
        if converted is not None:
            return converted
    expected = " or ".join(_NAMES[typing.get_origin(kind) or kind] for kind in kinds)
    text = repr(value)
    raise ConfigError(f"{name} must be {expected}, got {text if len(text) <= 80 else text[:77] + '...'}")


def _is_union(declared: Any) -> bool:
    return typing.get_origin(declared) in (typing.Union, types.UnionType)


# Each converter returns None for a value that is not of its kind.


def _as_bool(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _as_int(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # the question is whether it can
    except TypeError:
        return None
    return number if abs(number) <= _INT64_MAX else None


def _as_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _as_text(value: object) -> str | None:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    return path if isinstance(path, str) else None


def _as_mapping(value: object) -> dict[str, Any] | None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return None
    return dict(value)


def _as_list(value: object) -> list[Any] | None:
    return list(value) if isinstance(value, (list, tuple)) else None


_CONVERTERS: Mapping[Any, Any] = {
    bool: _as_bool,
    int: _as_int,
    float: _as_float,
    str: _as_text,
    dict: _as_mapping,
    list: _as_list,
    type: lambda value: value if isinstance(value, type) else None,
    types.NoneType: lambda value: None,
}
_NAMES: Mapping[Any, str] = {
    bool: "a bool",
    int: "an integer that fits 64 bits",
    float: "a finite number",
    str: "text",
    dict: "a mapping with text keys",
    list: "a list",
    type: "a class",
    types.NoneType: "None",
}
