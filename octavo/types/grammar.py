"""Grammars as they travel: from where a request is checked, where they are compiled first, to where they are used."""

from __future__ import annotations

import enum

import msgspec


class GrammarSpec(msgspec.Struct, array_like=True, frozen=True):
    """A grammar in its backend's own words. It has been compiled before, so compiling it again harms nobody.

    backend: guidance or xgrammar; kind: which of the backend's grammar languages; source: the grammar
    unique_places: JSON; where in the answer arrays hold distinct items (structured/json_schema/places.py); or empty
    is_costly: compiling it took long, and will again
    """

    backend: str
    kind: str
    source: str
    unique_places: str = ""
    is_costly: bool = False


class GrammarProgress(enum.Enum):
    """Where a request's grammar is after a token."""

    CONTINUES = enum.auto()
    COMPLETE = enum.auto()  # nothing can follow: the request ends
    REJECTED = enum.auto()  # the token was not allowed
