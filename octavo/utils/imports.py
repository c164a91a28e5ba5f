"""Objects and the dotted names by which they are imported."""

from __future__ import annotations

import importlib
from typing import Any

from octavo.errors import ConfigError


def import_by_name(name: str) -> Any:
    """Return the object at `package.module.Name` or `package.module:Name`; ConfigError when there is none."""
    module_name, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot import {name!r} (expected module.Name or module:Name): {error}") from error


def name_of_class(found: type[Any]) -> str:
    """Return a class's `module:Name`, by which another process finds it; TypeError when it cannot."""
    if found.__module__ == "__main__" or "<locals>" in found.__qualname__:
        raise TypeError(f"{found.__qualname__} must be defined in a module that the process can import")
    return f"{found.__module__}:{found.__qualname__}"
