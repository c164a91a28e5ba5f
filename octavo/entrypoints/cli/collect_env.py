"""Describe this machine and installation: what to put into a bug report, and why something is slow.

Nothing here is secret: OCTAVO_ variables are shown, tokens and other variables are not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

USAGE = "octavo collect-env"


class Fact(NamedTuple):
    """One line of the report."""

    name: str
    value: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    facts = [*_software(), *_machine(), *_native(), *_settings()]
    width = max(len(fact.name) for fact in facts)
    for fact in facts:
        print(f"{fact.name:<{width}}  {fact.value}")
    return 0


def _software() -> Iterator[Fact]:
    import platform
    import sys
    from importlib import metadata

    def version_of(distribution: str) -> str:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return "not installed"

    yield Fact("octavo", version_of("octavo"))
    yield Fact("python", f"{platform.python_version()} ({sys.executable})")
    yield Fact("system", platform.platform())
    for name in _DEPENDENCIES:
        yield Fact(name, version_of(name))


def _machine() -> Iterator[Fact]:
    from octavo.platforms import cpu

    memory = cpu.memory_facts()
    model, flags = _processor()
    yield Fact("processor", model)
    yield Fact("instruction sets", " ".join(name for name in _INTERESTING_FLAGS if name in flags) or "unknown")
    yield Fact("usable cores", str(cpu.usable_cores()))
    yield Fact("memory", f"{_gib(memory.total_bytes)} usable, {_gib(memory.available_bytes)} of it free now")


def _native() -> Iterator[Fact]:
    from octavo.ops import select

    facts = select.native_facts()
    yield Fact("native extension", "missing: the slower reference ops are used" if facts is None else str(facts))


def _settings() -> Iterator[Fact]:
    from octavo import envs
    from octavo.loader import catalog

    yield Fact("cache folder", str(envs.cache_dir()))
    here = [model.name for model in catalog.list_models() if catalog.local_path(model.name) is not None]
    yield Fact("models here", ", ".join(here) or "none (octavo models pull NAME)")
    for name, value in envs.settings().items():
        yield Fact(name, value)


_DEPENDENCIES = (
    "numpy",
    "tokenizers",
    "huggingface-hub",
    "gguf",
    "jinja2",
    "llguidance",
    "msgspec",
    "pyzmq",
    "tqdm",
    "starlette",
    "uvicorn",
    "httptools",
    "uvloop",
    "pyyaml",
)
_INTERESTING_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "sve",
    "i8mm",
    "bf16",
)


def _processor() -> tuple[str, frozenset[str]]:
    """Return the processor's name and feature flags as Linux tells them, elsewhere the name alone."""
    import platform
    from pathlib import Path

    name, flags = platform.processor() or platform.machine(), frozenset[str]()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return name, flags
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = frozenset(value.split())
            break
    return name, flags


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
