"""Local files whose content nobody vouches for: JSON objects, and files mapped into memory."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from octavo.errors import CheckpointError
from octavo.log import get_logger

logger = get_logger(__name__)

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_WEB_PAGES = (b"<!doctype", b"<html", b"<?xml")  # what a server says instead of a file: not found, no access


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raises CheckpointError when it cannot be read or holds anything else."""
    value = _read_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def read_json_array(path: Path) -> list[Any]:
    """Return the array in a JSON file; raises CheckpointError when it cannot be read or holds anything else."""
    value = _read_json(path)
    if not isinstance(value, list):
        raise CheckpointError(f"{path} must hold a JSON array, got {type(value).__name__}")
    return value


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error})") from None


def present_names(folder: Path, paths: Iterable[Path]) -> list[str]:
    """Return the names, below the folder, of those that are files; warns of links to files that are gone."""
    names, gone = [], []
    for path in sorted(paths):
        if path.is_file():
            names.append(path.relative_to(folder).as_posix())
        elif path.is_symlink() and not path.exists():
            gone.append(path.relative_to(folder).as_posix())
    if gone:
        logger.warning("%s has links to files that are gone: %s", folder, ", ".join(gone[:10]))
    return names


def map_file(path: Path, format_name: str, least_bytes: int) -> mmap.mmap:
    """Map a file for reading; raises CheckpointError when it cannot be read or is too short for its format."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < least_bytes:
                raise CheckpointError(
                    f"{path}: not a {format_name} file: it has only {size} bytes, a header alone {least_bytes}"
                )
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    if mapped[: len(_LFS_POINTER)] == _LFS_POINTER:
        raise CheckpointError(
            f"{path} is a Git LFS pointer and not the {format_name} file itself; fetch it with `git lfs pull`"
        )
    if mapped[:64].lstrip().lower().startswith(_WEB_PAGES):
        raise CheckpointError(f"{path} is a web page and not the {format_name} file itself; download it again")
    return mapped


def release_pages(buffer: mmap.mmap) -> None:
    """End the mapping's claim on its pages: they stay in the system's file cache, and are mapped again when touched."""
    if hasattr(mmap, "MADV_DONTNEED"):
        buffer.madvise(mmap.MADV_DONTNEED)


class PageRelease:
    """Lets go of a mapped file's pages while a model is read from it, so that they do not add to its packed weights."""

    _READ_BYTES = 32 << 20

    def __init__(self) -> None:
        self._unreleased_bytes = 0

    def before_reading(self, buffer: mmap.mmap, size_bytes: int) -> None:
        """Call it before each tensor of `size_bytes` is read."""
        if self._unreleased_bytes >= self._READ_BYTES:
            release_pages(buffer)
            self._unreleased_bytes = 0
        self._unreleased_bytes += size_bytes
