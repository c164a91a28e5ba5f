"""Where the workers of one machine meet: a private directory, in memory where the system has that, and soon gone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from octavo.errors import ConfigError
from octavo.utils.private_directory import PrivateDirectory

_MEMORY_FOLDER = "/dev/shm"


class Rendezvous(PrivateDirectory):
    """The parent's side: gives the workers an address. address: for `WorkerPlace`

    Once all workers have connected, it can go: nothing is left whatever happens later.
    """

    def __init__(self) -> None:
        super().__init__(_MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else tempfile.gettempdir())
        self.address = f"shm:{self.path}"


def shared_directory(address: str) -> Path:
    """Return the directory of an address "shm:DIRECTORY"."""
    scheme, _, directory = address.partition(":")
    if scheme != "shm" or not directory:
        raise ConfigError(f"the address of workers must be shm:DIRECTORY, got {address!r}")
    return Path(directory)
