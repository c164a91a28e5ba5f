"""What a grammar library must do for the engine, and which ones there are."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ConfigError
from octavo.structured.limits import GrammarLimits
from octavo.structured.vocabulary import Vocabulary
from octavo.types.grammar import GrammarSpec

Bitmask = NDArray[np.int32]  # [rows, ceil(vocabulary / 32)], bit i of word w set = id 32 w + i allowed


class GrammarError(Exception):
    """A grammar cannot be compiled or is over a limit; the text is for the user who wrote it."""


class Matcher(Protocol):
    """A place in a grammar. At an end of the grammar, the vocabulary's eos_ids are allowed too."""

    @property
    def is_complete(self) -> bool:
        """Whether the text satisfies the grammar and nothing can follow."""

    @property
    def error(self) -> str | None:
        """Why the matcher can go no further (a limit, a token that was not allowed); None while it can."""

    def accept(self, token_id: int) -> bool:
        """Advance by a token; False if it is not allowed, which is an error for good."""

    def accept_unlocked(self, token_id: int) -> bool:
        """Do the same, for a token that takes long: other threads have the interpreter meanwhile."""

    def num_valid(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens are allowed one after another; changes nothing."""

    def rollback(self, num_tokens: int) -> None:
        """Go back by so many accepted tokens."""

    def copy(self) -> Matcher:
        """Return a matcher at the same place that goes on by itself."""


class Backend(Protocol):
    """One grammar library over one vocabulary. Methods may be called from several threads at once."""

    def compile(self, spec: GrammarSpec) -> Matcher:
        """Return a matcher at the grammar's begin; raises GrammarError."""

    def fill_mask(self, matcher: Matcher, mask: Bitmask) -> None:
        """Fill a mask of one row with the tokens that come next. An error shows in the matcher, not here."""


def make_backend(name: str, vocabulary: Vocabulary, limits: GrammarLimits) -> Backend:
    """Return the backend; takes a while for large vocabularies. Raises ConfigError when it is not installed."""
    from octavo.structured.unique_items import UniqueItemsBackend  # here: it implements what is declared above

    check_backend(name)
    return UniqueItemsBackend(importlib.import_module(_MODULES[name]).make_backend(vocabulary, limits), vocabulary)


def check_backend(name: str) -> None:
    """Raise ConfigError for a backend that is unknown or not installed, and say how to get it."""
    if name not in BACKENDS:
        raise ConfigError(
            f"structured_outputs_config.backend must be auto or one of {', '.join(BACKENDS)}, got {name!r}"
        )
    if importlib.util.find_spec(_LIBRARIES[name]) is None:
        extra = "" if name == DEFAULT_BACKEND else f"[{name}]"
        raise ConfigError(
            f"structured_outputs_config.backend={name!r} needs the package {_LIBRARIES[name]}, which is not installed; "
            f"run: pip install 'octavo{extra}', or use backend {DEFAULT_BACKEND!r}"
        )


DEFAULT_BACKEND = "guidance"
BACKENDS = ("guidance", "xgrammar")
_MODULES = {"guidance": "octavo.structured.guidance", "xgrammar": "octavo.structured.xgrammar"}
_LIBRARIES = {"guidance": "llguidance", "xgrammar": "xgrammar"}
