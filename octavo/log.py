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
    _root.propagate = False
    try:
        _root.setLevel(envs.log_level())
    except ValueError:  # a misspelt level must not keep anything from running
        _root.setLevel(logging.INFO)
        _root.warning("OCTAVO_LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR, got %r; INFO is taken", envs.log_level())


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module; call it as `get_logger(__name__)`."""
    return logging.getLogger(name)
