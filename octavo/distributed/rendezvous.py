"""Where the workers of one machine meet: a private directory, in memory where the system has that, and soon gone."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from octavo.errors import ConfigError

_MEMORY_FOLDER = "/dev/shm"


class Rendezvous:
    """The parent's side: gives the workers an address. address: for `WorkerPlace`"""

    def __init__(self) -> None:
        folder = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None
        self._directory = Path(tempfile.mkdtemp(prefix="octavo-", dir=folder))
        self.address = f"shm:{self._directory}"

    def close(self) -> None:
        """Remove the directory: once all workers have connected, nothing is left whatever happens later; idempotent."""
        shutil.rmtree(self._directory, ignore_errors=True)


def shared_directory(address: str) -> Path:
    """Return the directory of an address "shm:DIRECTORY"."""
    scheme, _, directory = address.partition(":")
    if scheme != "shm" or not directory:
        raise ConfigError(f"the address of workers must be shm:DIRECTORY, got {address!r}")
    return Path(directory)
