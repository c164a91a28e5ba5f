"""Choose the ops backend, its instruction set and its threads: the only place that knows which backends exist.

Reads OCTAVO_OPS, OCTAVO_ISA and OCTAVO_NUM_THREADS.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from octavo import envs
from octavo.errors import ConfigError
from octavo.log import get_logger
from octavo.ops.interface import Ops
from octavo.platforms import cpu

logger = get_logger(__name__)

_BACKENDS = ("native", "reference")


@dataclass(frozen=True)
class NativeFacts:
    """What the native extension can do on this machine: its instruction sets (best last), and the one in use."""

    available_isas: tuple[str, ...]
    isa: str
    num_threads: int

    def __str__(self) -> str:
        return f"{self.isa} of {', '.join(self.available_isas)}; {self.num_threads} threads"


def select_ops() -> Ops:
    """Return the best backend that this installation has, or the one that OCTAVO_OPS names.

    Raises ConfigError for an unknown or missing backend, and for an instruction set that is not available.
    """
    wish = envs.ops_backend()
    if wish not in (None, *_BACKENDS):
        raise ConfigError(f"OCTAVO_OPS must be one of {', '.join(_BACKENDS)}, got {wish!r}")
    if wish == "reference":
        return _reference_ops()
    if _native_is_installed():
        return _native_ops()
    if wish == "native":
        raise ConfigError(f"OCTAVO_OPS=native, but the native extension is not there: {_HOW_TO_BUILD}")
    logger.warning(
        "The native extension was not built when octavo was installed (no C++ compiler?). NumPy computes instead: "
        "slower, and BLAS gives up batch invariance: a request's result may depend on its neighbours. %s.",
        _HOW_TO_BUILD,
    )
    return _reference_ops()


def native_facts() -> NativeFacts | None:
    """Return what the native extension has on this machine, or None where it was not built."""
    if not _native_is_installed():
        return None
    from octavo import _native

    _configure_native()
    return NativeFacts(tuple(_native.available_isas()), _native.isa(), _native.num_threads())


_HOW_TO_BUILD = "Install a C++17 compiler (such as g++) and reinstall octavo"


def _native_is_installed() -> bool:
    # Looks for the file only: one that is there and does not load is a fault to show, not a reason to fall back.
    return importlib.util.find_spec("octavo._native") is not None


def _native_ops() -> Ops:
    _configure_native()
    from octavo.ops.native import NativeOps

    return NativeOps()


def _check_interface() -> None:
    """Raise ConfigError for an extension from before a change of the code that calls it, as after a git pull."""
    from octavo import _native

    stub = Path(__file__).parent.parent / "_native.pyi"
    if not stub.exists():
        return
    missing, owner = [], ""
    for indent, kind, name in re.findall(r"^( *)(def|class) (\w+)", stub.read_text(encoding="utf-8"), re.MULTILINE):
        if not indent:
            owner = name if kind == "class" else ""
        path = f"{owner}.{name}" if indent else name
        try:
            attrgetter(path)(_native)
        except AttributeError:
            missing.append(path)
    if missing:
        raise ConfigError(
            f"the native extension {_native.__file__} is older than the code that calls it (it lacks "
            f"{', '.join(missing)}): rebuild it with scripts/build in a source tree, or reinstall octavo"
        )


def _reference_ops() -> Ops:
    from octavo.ops.reference import ReferenceOps

    return ReferenceOps()


def _configure_native() -> None:
    """Apply OCTAVO_ISA and OCTAVO_NUM_THREADS (default: one thread per usable core)."""
    from octavo import _native

    _check_interface()
    available = _native.available_isas()
    isa = envs.isa() or available[-1]
    if isa not in available:
        raise ConfigError(f"OCTAVO_ISA must be one of {', '.join(available)} on this machine, got {isa!r}")
    _native.set_isa(isa)
    num_threads = envs.num_threads() or cpu.usable_cores()
    if num_threads != _native.num_threads():
        _native.set_num_threads(num_threads)
