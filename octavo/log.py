"""Logging: one logger a module below the `octavo` logger, one handler, the level from OCTAVO_LOG_LEVEL."""

from __future__ import annotations

import logging

from octavo import envs

_FORMAT = "%(levelname)s %(asctime)s [%(name)s] %(message)s"
_root = logging.getLogger("octavo")
if not _root.handlers:
    _handler = logging.StreamHandler()
    _handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%H:%M:%S"))
    _root.addHandler(_handler)
    _root.setLevel(envs.log_level())
    _root.propagate = False


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module; call it as `get_logger(__name__)`."""
    return logging.getLogger(name)
