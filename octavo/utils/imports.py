"""Import an object by the dotted name that a user gave."""

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
