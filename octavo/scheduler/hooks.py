"""What grammars plug into the scheduler; without them it is None in its constructor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from octavo.scheduler.request import Request
from octavo.types.grammar import GrammarProgress
from octavo.types.step import GrammarOutput


class GrammarHook(Protocol):
    """The scheduler's side of structured output. Raises InvalidRequestError from `is_ready` if compilation failed."""

    def is_ready(self, request: Request) -> bool:
        """Tell whether the request's grammar is compiled; the first call may start that. Never blocks.

        A request may come with output (it goes on after an engine's death); the grammar starts behind it.
        """

    def take_ready(self) -> list[str]:
        """Return the ids of requests whose grammars have arrived; each once, also of aborted and of running ones."""

    def may_run(self, request: Request) -> bool:
        """Say whether a request whose grammar is compiled may be scheduled now, or would hold up the step."""

    def start_masks(self, request_ids: Sequence[str], drafts: Mapping[str, Sequence[int]]) -> None:
        """Begin to fill the masks that `bitmask` will be asked for, while the step is computed."""

    def bitmask(self, request_ids: Sequence[str], drafts: Mapping[str, Sequence[int]]) -> GrammarOutput | None:
        """Return the masks of the requests whose grammar constrains their next token; None if there are none.

        Per request there is one row for each of its drafts and one for what follows. Those that are not there in time
        are named.
        """

    def begin_accept(self, request: Request, token_id: int) -> bool:
        """Say whether `accept` would answer at once. Begins what takes long; then ask again in a later step."""

    def accept(self, request: Request, token_id: int) -> GrammarProgress:
        """Advance the request's grammar by a token that was sampled under its mask."""

    def error(self, request: Request) -> str | None:
        """Say why the request's grammar can go no further; None while it can."""

    def valid_drafts(self, request: Request, token_ids: Sequence[int]) -> list[int]:
        """Return the longest prefix of proposals that the grammar allows."""

    def release(self, request: Request) -> None:
        """Forget a request; it may be unknown."""
