"""The worker class that a configuration names, and workers of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.config import OctavoConfig, ParallelConfig
from octavo.distributed.place import WorkerPlace
from octavo.errors import ConfigError, UnsupportedError
from octavo.loader.checkpoint import Checkpoint
from octavo.utils.imports import import_by_name
from octavo.worker.worker import Worker


def start_worker(config: OctavoConfig, checkpoint: Checkpoint, place: WorkerPlace) -> Worker:
    """Return a worker that holds its weights."""
    worker = worker_class(config.parallel)(config, checkpoint, place)
    worker.init_device()
    worker.load_model()
    return worker


def worker_class(parallel: ParallelConfig) -> type[Worker]:
    """Return the worker class with its extension's methods added."""
    base: type[Worker] = _import_class("worker_cls", parallel.worker_cls) if parallel.worker_cls else Worker
    if not issubclass(base, Worker):
        raise ConfigError(f"worker_cls={parallel.worker_cls!r} must name a subclass of octavo.worker.worker.Worker")
    if not parallel.worker_extension_cls:
        return base
    extension = _import_class("worker_extension_cls", parallel.worker_extension_cls)
    try:
        return type(f"{base.__name__}With{extension.__name__}", (base, extension), {})
    except TypeError as error:
        raise ConfigError(
            f"worker_extension_cls={parallel.worker_extension_cls!r} cannot be mixed into {base.__name__}: {error}"
        ) from error


def worker_method(worker: Worker, name: object) -> Callable[..., Any]:
    """Return a worker's method; raises UnsupportedError when it has none of this name."""
    method = getattr(worker, name, None) if isinstance(name, str) else None
    if not callable(method):
        raise UnsupportedError(
            f"the worker has no method {name!r}; worker_extension_cls gives it further ones, and where it runs in the "
            "caller's process a function does too"
        )
    found: Callable[..., Any] = method
    return found


def _import_class(option: str, name: str) -> type[Any]:
    imported = import_by_name(name)
    if not isinstance(imported, type):
        raise ConfigError(f"{option}={name!r} must name a class, got {type(imported).__name__}")
    return imported
