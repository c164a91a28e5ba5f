"""Directories that processes meet in: mode 0700, gone when their owner is.

An owner holds a lock on its directory, so that a later start can tell one that is in use from one that was left behind
by processes which were all killed at once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "octavo-"
_LOCK_NAME = "lock"
_YOUNG_S = 60  # younger directories are left alone: their owner may be about to lock them


class PrivateDirectory:
    """A new directory in another; `remove` ends it. Those of owners that are gone are removed from there first."""

    def __init__(self, base: str) -> None:
        _remove_left_behind(Path(base))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        self._lock = os.open(self.path / _LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Delete the directory; idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _remove_left_behind(base: Path) -> None:
    """Delete directories of this user whose owner is gone."""
    for path in base.glob(f"{PREFIX}*"):
        try:
            status = path.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S or path.is_symlink():
                continue
            lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # not one of ours, or somebody else removes it right now
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(lock)
