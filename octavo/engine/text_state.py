"""The text of one growing sequence: decoded when needed, cut at stop strings, held back where one may still come."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.stop_strings import StopMatcher
from octavo.tokenizers.detokenizer import IncrementalDetokenizer


class TextState:
    """Turn tokens into the text that the user may see.

    Without stop strings nobody needs the text before it is read, so many tokens can come at once, just before. With
    stop strings each is decoded by itself: only so is it known which token completes one.
    """

    __slots__ = (
        "_closed",
        "_detokenizer",
        "_include_stop_string",
        "_matcher",
        "_min_tokens",
        "_num_tokens",
        "_pieces",
        "stop_string",
    )

    def __init__(
        self,
        detokenizer: IncrementalDetokenizer,
        stop_strings: Sequence[str],
        include_stop_string: bool,
        min_tokens: int,
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stop_strings) if stop_strings else None
        self._include_stop_string = include_stop_string
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._pieces: list[str] = []  # in delta reading: what has not been read; otherwise the whole text
        self._closed = False
        self.stop_string: str | None = None

    def add(self, token_ids: Sequence[int]) -> int:
        """Take new tokens; return how many of them count: fewer than all if a stop string completed before the last."""
        if self._matcher is None:
            self._take(self._detokenizer.push(token_ids))
            return len(token_ids)
        for number, token_id in enumerate(token_ids, start=1):
            self._num_tokens += 1
            self._take(self._detokenizer.push((token_id,)))
            if self.stop_string is not None:
                return number
        return len(token_ids)

    def close(self) -> None:
        """End the sequence: an incomplete last character comes out, and nothing is held back any more."""
        if self.stop_string is None:
            self._take(self._detokenizer.finish())
        self._closed = True

    def read(self, delta: bool) -> str:
        """Return the visible text: all of it, or (delta) what became visible since the last call.

        One text state is read in one of the two ways only.
        """
        text = "".join(self._pieces)
        visible = text[: len(text) - self._num_held_back()]
        self._pieces = [text[len(visible) :] if delta else text]
        return visible

    def _num_held_back(self) -> int:
        if self._matcher is None or self._closed or self._include_stop_string:
            return 0
        return self._matcher.num_held_back

    def _take(self, piece: str) -> None:
        """Append a piece; when a stop string completes in it, cut the text there."""
        if not piece:
            return
        self._pieces.append(piece)
        match = self._matcher.feed(piece, self._num_tokens > self._min_tokens) if self._matcher else None
        if match is None:
            return
        num_cut = match.num_after + (0 if self._include_stop_string else len(match.stop_string))
        text = "".join(self._pieces)
        self._pieces = [text[: len(text) - num_cut]]
        self.stop_string = match.stop_string
