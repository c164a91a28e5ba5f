"""Where the workers of one machine meet: a private directory, in memory where the system has that, and soon gone."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from pathlib import Path

from octavo.errors import ConfigError

_MEMORY_FOLDER = "/dev/shm"
_ABORTED = b"\x01"  # of a group's shared memory, the first byte: somebody gave up (csrc/shared_group.cpp)


class Rendezvous:
    """The parent's side: gives the workers an address, then watches. Call order: workers connect, seal, abort or close.

    address: for `WorkerPlace`
    """

    def __init__(self) -> None:
        folder = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None
        self._directory = Path(tempfile.mkdtemp(prefix="octavo-", dir=folder))
        self._memories: list[mmap.mmap] = []
        self.address = f"shm:{self._directory}"

    def seal(self) -> None:
        """All workers have connected: remove the directory, so that nothing is left whatever happens later."""
        for path in sorted(self._directory.glob("*.group")):
            with path.open("r+b") as file:
                self._memories.append(mmap.mmap(file.fileno(), mmap.PAGESIZE))
        shutil.rmtree(self._directory, ignore_errors=True)

    def abort(self) -> None:
        """Wake all workers that wait for another: they raise PeerLostError."""
        if not self._memories and self._directory.exists():
            self.seal()
        for memory in self._memories:
            memory[0:1] = _ABORTED

    def close(self) -> None:
        """Remove what is left; idempotent."""
        for memory in self._memories:
            memory.close()
        self._memories = []
        shutil.rmtree(self._directory, ignore_errors=True)


def shared_directory(address: str) -> Path:
    """Return the directory of an address "shm:DIRECTORY"."""
    scheme, _, directory = address.partition(":")
    if scheme != "shm" or not directory:
        raise ConfigError(f"the address of workers must be shm:DIRECTORY, got {address!r}")
    return Path(directory)
