"""The private directory in which a front end and its core meet; gone when both are."""

from __future__ import annotations

import os
import tempfile

from octavo.utils.private_directory import PREFIX, PrivateDirectory

_MAX_PATH_BYTES = 80  # a unix socket's path has at most 103 on some systems; names inside are short


class MeetingPlace(PrivateDirectory):
    """A directory for one front end's sockets; `remove` ends it."""

    def __init__(self) -> None:
        default = tempfile.gettempdir()
        super().__init__(default if len(os.fsencode(default)) <= _MAX_PATH_BYTES - len(PREFIX) - 8 else "/tmp")
