"""Files of prompts and of results: what an earlier run wrote stays until there is something new."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from octavo.errors import InvalidRequestError


def refuse_urls(*names: str | None) -> None:
    """Raise InvalidRequestError for what is a URL and no file."""
    for name in names:
        if name is not None and "://" in name:
            raise InvalidRequestError(f'{name} is a URL, not a file; name "-" and use a pipe: to or from `curl URL`')


def is_same_file(prompts: str | None, results: str | None) -> bool:
    """Say whether results would be written over the prompts."""
    if prompts in (None, "-") or results in (None, "-"):
        return False
    return Path(results).exists() and Path(prompts).exists() and Path(results).samefile(prompts)


@contextlib.contextmanager
def open_results(name: str | None, standard: IO[Any], **how: str) -> Iterator[Any]:
    """Open a file that `start_afresh` empties; a new one is removed again when nothing comes of it.

    name: None, "-": the standard output; how: mode and encoding
    """
    if name is None or name == "-":
        yield standard
        return
    path = Path(name)
    is_new = not path.exists()
    try:
        with path.open(**how) as file:  # type: ignore[call-overload]  # its mode is "a" or "ab"
            yield file
    except BaseException:
        if is_new and path.is_file() and path.stat().st_size == 0:
            path.unlink()
        raise


def start_afresh(file: IO[Any]) -> None:
    """Empty the file of results, now that the model is loaded and the prompts are accepted; a pipe stays as it is."""
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.truncate(0)
