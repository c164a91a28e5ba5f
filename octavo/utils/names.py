"""Names that people misspell."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest_names(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the known names closest to name, or nothing when none is close."""
    spelt = {one.lower(): one for one in known}
    close = [spelt[one] for one in difflib.get_close_matches(name.lower(), spelt, n=3)]
    return f"; did you mean {' or '.join(close)}?" if close else ""
