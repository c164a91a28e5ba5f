"""Names that people misspell."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable

from octavo import envs
from octavo.log import get_logger

logger = get_logger(__name__)


def closest_names(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the known names closest to name, or nothing when none is close."""
    spelt = {one.lower(): one for one in known}
    close = [spelt[one] for one in difflib.get_close_matches(name.lower(), spelt, n=3)]
    return f"; did you mean {' or '.join(close)}?" if close else ""


@functools.cache
def warn_of_unknown_variables() -> None:
    """Tell, once, of OCTAVO_ variables that nothing reads: they are misspelt, or of another version."""
    for name in envs.unknown():
        hint = closest_names(name, envs.KNOWN)
        logger.warning("the environment variable %s is not known and has no effect%s", name, hint)
