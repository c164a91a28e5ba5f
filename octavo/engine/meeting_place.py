"""The private directory in which a front end and its core meet: mode 0700, gone when both are.

Its owner holds a lock on it, so that a later start can tell a directory that is in use from one that was left behind
when both processes were killed at once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from octavo.log import get_logger

logger = get_logger(__name__)

_PREFIX = "octavo-"
_LOCK_NAME = "lock"
_MAX_PATH_BYTES = 80  # a unix socket's path has at most 103 on some systems; names inside are short
_YOUNG_S = 60  # younger directories are left alone: their owner may be about to lock them


class MeetingPlace:
    """A directory for one front end's sockets; `remove` ends it."""

    def __init__(self) -> None:
        _remove_left_behind(Path(_base()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_base()))
        self._lock = os.open(self.path / _LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Delete the directory; idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _base() -> str:
    default = tempfile.gettempdir()
    return default if len(os.fsencode(default)) <= _MAX_PATH_BYTES - len(_PREFIX) - 8 else "/tmp"


def _remove_left_behind(base: Path) -> None:
    """Delete directories of this user whose owner is gone."""
    for path in base.glob(f"{_PREFIX}*"):
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
