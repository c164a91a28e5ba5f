"""The environment variables that Octavo reads: the whole list, each read when asked for (never at import)."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder for downloaded models: OCTAVO_CACHE, else $XDG_CACHE_HOME/octavo, else ~/.cache/octavo."""
    explicit = os.environ.get("OCTAVO_CACHE")
    if explicit:
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "octavo"


def log_level() -> str:
    """Return OCTAVO_LOG_LEVEL (default INFO)."""
    return os.environ.get("OCTAVO_LOG_LEVEL", "INFO").upper()


def num_threads() -> int | None:
    """Return OCTAVO_NUM_THREADS, the size of the native thread pool, or None for one per usable core."""
    return _positive_int("OCTAVO_NUM_THREADS", most=1024)


def isa() -> str | None:
    """Return OCTAVO_ISA (avx512, avx2, portable), which forces a lower instruction set, or None."""
    return os.environ.get("OCTAVO_ISA") or None


def ops_backend() -> str | None:
    """Return OCTAVO_OPS (native, reference), which forces an ops backend, or None for the best available."""
    return os.environ.get("OCTAVO_OPS") or None


def enable_multiprocessing() -> bool:
    """Return OCTAVO_ENABLE_MULTIPROCESSING (1 or 0, default 0): whether `LLM` computes in a process of its own."""
    text = os.environ.get("OCTAVO_ENABLE_MULTIPROCESSING") or "0"
    if text not in ("0", "1"):
        from octavo.errors import ConfigError

        raise ConfigError(f"OCTAVO_ENABLE_MULTIPROCESSING must be 0 or 1, got {text!r}")
    return text == "1"


def api_keys() -> list[str]:
    """Return OCTAVO_API_KEY as a list of one: the key that requests to a server must carry; [] if it is not set."""
    key = os.environ.get("OCTAVO_API_KEY")
    return [] if key is None else [key]


def otlp_traces_protocol() -> str:
    """Return OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, OpenTelemetry's own: grpc (default, as in vLLM) or http/protobuf."""
    return os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or "grpc"


def launched_rank() -> dict[str, str]:
    """Return torchrun's RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; "" for one that is not set."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return {name: os.environ.get(name, "") for name in names}


def use_interface(name: str) -> None:
    """Let gloo speak over this network interface, unless GLOO_SOCKET_IFNAME says another."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def allow_runtime_lora_updating() -> bool:
    """Return OCTAVO_ALLOW_RUNTIME_LORA_UPDATING (default 0): whether clients may have adapters loaded from folders."""
    return (os.environ.get("OCTAVO_ALLOW_RUNTIME_LORA_UPDATING") or "0").lower() in ("1", "true")


def data_parallel_key() -> str:
    """Return OCTAVO_DATA_PARALLEL_KEY, by which a front end and the hosts of its replicas know each other, or ""."""
    return os.environ.get("OCTAVO_DATA_PARALLEL_KEY", "")


def settings() -> dict[str, str]:
    """Return the OCTAVO_ variables that are set, for reports and for telling a wish from a default; no secrets."""
    return {
        name: "(set)" if name.endswith("_KEY") else value
        for name, value in sorted(os.environ.items())
        if name.startswith("OCTAVO_")
    }


def unknown() -> list[str]:
    """Return the OCTAVO_ variables that are set and that nothing reads."""
    return [name for name in settings() if name not in KNOWN]


KNOWN = frozenset(
    f"OCTAVO_{name}"
    for name in (
        *("CACHE", "LOG_LEVEL", "NUM_THREADS", "ISA", "OPS", "ENABLE_MULTIPROCESSING", "API_KEY"),
        *("ALLOW_RUNTIME_LORA_UPDATING", "DATA_PARALLEL_KEY"),
    )
)


def _positive_int(name: str, most: int) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    from octavo.errors import ConfigError

    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        raise ConfigError(f"{name} must be a positive integer of at most {most}, got {text!r}")
    return value
